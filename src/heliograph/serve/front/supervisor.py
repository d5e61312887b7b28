"""The worker's life as the front sees it: start, frames, silence, death, restart, stop. Every wait is bounded.

One task runs :meth:`Supervisor.run`; the other methods are called in the same event loop. When a worker ends, every
row under way ends before the next worker is started.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from enum import Enum
from typing import Protocol

from heliograph import errors
from heliograph.errors import HeliographError, ProtocolError, TamperedError, WorkerError
from heliograph.serve.frames import (
    MAX_ROWS,
    PROTOCOL,
    Cancel,
    Decoder,
    Ended,
    Failed,
    FromFront,
    FromWorker,
    Hello,
    Launched,
    Loaded,
    Phase,
    Proceed,
    Ready,
    Stop,
    check_protocol,
    encode,
)
from heliograph.serve.front.journal import End, Journal, Row, submit_of
from heliograph.serve.limits import Limits

CHUNK = 1 << 16  # bytes of one read


class Worker(Protocol):
    """A worker's process, or what stands for it in tests."""

    socket: socket.socket

    def kill(self) -> None: ...

    async def ended(self) -> int:
        """Waits for its end; the exit status, negative for a signal."""


class Observer(Protocol):
    """Told what a worker says beside what rows get."""

    def phase(self, name: str, nanoseconds: int) -> None: ...
    def loaded(self, loaded: Loaded) -> None: ...
    def ready(self) -> None: ...
    def launched(self, launched: Launched, kept: int) -> None: ...
    def ended(self, ended: Ended) -> None: ...
    def restarting(self, error: HeliographError) -> None: ...


class State(Enum):
    STARTING = "starting"  # the first worker is not loaded yet
    TESTING = "testing"  # a worker takes rows, and has not passed all self-tests of its start
    READY = "ready"
    DOWN = "down"  # the worker ended; another one starts
    ENDED = "ended"


SERVING = (State.TESTING, State.READY)


class Supervisor:
    def __init__(
        self, launch: Callable[[], Worker], digest: Awaitable[str], journal: Journal,
        observer: Observer, limits: Limits,
    ) -> None:  # fmt: skip
        """``launch`` gives a worker that has been told its Start. ``digest`` is of the core that the front checked; the
        worker must have checked the same."""
        self.state = State.STARTING
        self.settled = asyncio.Event()  # rows can be submitted, or never will be
        self._launch, self._digest = launch, asyncio.ensure_future(digest)
        self._journal, self._observer, self._limits = journal, observer, limits
        self._writer: asyncio.StreamWriter | None = None
        self._patience = asyncio.timeout(None)  # of the read that is waiting
        self._stopping = False
        self._was_ready = False
        self._heard_from = 0.0  # when clients that came before the event loop have been heard, by its clock

    async def run(self) -> None:
        """Until :meth:`stop`. Raises the error that ends the server: the first worker did not become ready, or its
        successors ended too often."""
        deaths: deque[float] = deque()
        clock = asyncio.get_running_loop().time
        self._heard_from = clock() + self._limits.early
        try:
            while not self._stopping:
                try:
                    await self._live(self._launch())
                except HeliographError as error:
                    if not self._was_ready:
                        raise
                    deaths.append(clock())
                    while deaths[0] < clock() - self._limits.restart_window:
                        deaths.popleft()
                    if len(deaths) > self._limits.restarts:
                        raise
                    self._observer.restarting(error)
        finally:
            self.state = State.ENDED
            self.settled.set()
            self._digest.cancel()

    async def stop(self) -> None:
        """Asks the worker to end; :meth:`run` returns when it has, within ``limits.stop``. One that loads reads nothing
        and has nothing to end: it is killed."""
        self._stopping = True
        self._say(Stop())
        self._be_patient(self._limits.stop if self.state in SERVING else 0.0)

    @property
    def full(self) -> bool:
        """Whether the worker has left so much that it should get no more rows. Cancels are bounded by rows."""
        return self._writer is not None and self._writer.transport.get_write_buffer_size() > self._limits.unread

    def submit(self, rows: Sequence[Row]) -> None:
        """Rows of one piece of work. They fail at once if no worker is loaded."""
        if self.state not in SERVING:
            for row in rows:
                self._journal.finish(row.number, End.FAILED, "the model is restarting")
            return
        self._say(submit_of(rows))
        if self._patience.when() is None:
            self._be_patient(self._limits.silence)

    def cancel(self, rows: Sequence[Row]) -> None:
        """Ends rows whose client has gone; those that have ended are left alone. The worker owes a frame for the
        others, so its silence goes on to count."""
        self._drop([row.number for row in rows if self._journal.finish(row.number, End.CANCELLED)])

    # ---- one worker ------------------------------------------------------------------------------------------------
    async def _live(self, worker: Worker) -> None:
        """From its start to its end. Returns if it ended because it was told to, else raises WorkerError, the error
        that it named, ProtocolError or TamperedError."""
        failure: HeliographError | None = None
        reader, self._writer = await asyncio.open_unix_connection(sock=worker.socket)
        if self._stopping:
            self._say(Stop())
        messages = self._messages(reader)
        try:
            async with asyncio.timeout(None) as self._patience:
                self._be_patient(0.0 if self._stopping else self._limits.start)
                await self._become_loaded(messages)
                self._relax()
                loop = asyncio.get_running_loop()
                loop.call_at(max(self._heard_from, loop.time()), self._say, Proceed())
                async for message in messages:
                    self._take(message)
                    self._relax()
        except TimeoutError:
            failure = _hangs(len(self._journal), self.state)
        except ConnectionError:
            pass  # it ended before it had read everything: its exit status says more
        except HeliographError as error:
            failure = error
        except BaseException:
            worker.kill()
            raise
        finally:
            if self.state in SERVING:
                self.state = State.DOWN
            await messages.aclose()
            self._writer.close()
            self._writer = None
            self._journal.finish_all(End.FAILED, "the worker ended while this was answered")
        torn = isinstance(failure, ProtocolError) and reader.at_eof()  # it ended in the middle of a frame
        if failure is not None and not torn:
            worker.kill()
        code = await self._bury(worker)
        if torn and code:
            failure = None  # its exit status says more
        if not self._stopping:
            raise failure or _lost(_status(code))

    async def _become_loaded(self, messages: AsyncIterator[FromWorker]) -> None:
        greeted = False
        async for message in messages:
            if isinstance(message, Hello) and not greeted:
                check_protocol(message.protocol)
                check_digest(message.digest, await self._digest)
                greeted = True
            elif isinstance(message, Phase):
                self._observer.phase(message.name, message.nanoseconds)
            elif isinstance(message, Failed):
                raise revived(message)
            elif isinstance(message, Loaded) and greeted:
                self._observer.loaded(message)
                self.state = State.TESTING
                self.settled.set()
                return
            else:
                raise _unexpected(message)
        # It closed its socket: its exit status says more.

    def _take(self, message: FromWorker) -> None:
        if isinstance(message, Launched):
            kept, over = 0, []
            for gain in message.gains:
                more, ended = self._journal.take(gain)
                kept += more
                if ended is not None and not gain.end:
                    over.append(ended.number)
            self._observer.launched(message, kept)
            self._drop(over)
        elif isinstance(message, Ended):
            self._observer.ended(message)
            if message.end == "refused":
                self._journal.finish(message.row, End.REFUSED, message.message)
            else:  # those that were cancelled here have ended here
                self._journal.finish(message.row, End.FAILED, message.message or "the worker dropped this")
        elif isinstance(message, Phase) and self.state is State.TESTING:
            self._observer.phase(message.name, message.nanoseconds)
        elif isinstance(message, Ready) and self.state is State.TESTING:
            self.state = State.READY
            self._was_ready = True
            self._observer.ready()
        elif isinstance(message, Failed):
            raise revived(message)
        else:
            raise _unexpected(message)

    async def _messages(self, reader: asyncio.StreamReader) -> AsyncGenerator[FromWorker, None]:
        decoder = Decoder[FromWorker](FromWorker)  # type: ignore[arg-type]  # a union is a type
        while data := await reader.read(CHUNK):
            for message in decoder.feed(data):
                yield message
        if not self._stopping:
            decoder.finish()

    async def _bury(self, worker: Worker) -> int:
        """Waits until its process has ended, killing it if it does not by itself. Gives the exit status."""
        for _ in range(2):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._limits.stop):
                    return await worker.ended()
            worker.kill()
        raise WorkerError(
            "ending the worker", found=f"a process that lives {self._limits.stop:.0f} s after SIGKILL",
            required="one that ends", hint="it is stuck in the kernel or a driver: see the system's log",
        )  # fmt: skip

    # ---- the wire --------------------------------------------------------------------------------------------------
    def _say(self, message: FromFront) -> None:
        if self._writer is not None:
            self._writer.write(encode(message))

    def _drop(self, numbers: Sequence[int]) -> None:
        for at in range(0, len(numbers), MAX_ROWS):
            self._say(Cancel(rows=tuple(numbers[at : at + MAX_ROWS])))

    def _relax(self) -> None:
        """A frame came: the next one is due in a while if rows are under way, or much was not taken."""
        if self._stopping:
            return
        if self.state is State.TESTING:
            self._be_patient(self._limits.start)
        else:
            self._be_patient(self._limits.silence if self._journal or self.full else None)

    def _be_patient(self, seconds: float | None) -> None:
        with contextlib.suppress(RuntimeError):  # it has run out already, or nothing waits
            self._patience.reschedule(None if seconds is None else asyncio.get_running_loop().time() + seconds)


# ---- errors --------------------------------------------------------------------------------------------------------
def check_digest(worker: str, front: str) -> None:
    """Both must have checked the same core."""
    if worker != front:
        raise TamperedError(
            "comparing the cores that front and worker opened", found=f"digest {worker} in the worker",
            required=f"{front}, as in the front", hint="the core was exchanged meanwhile: start the server again",
        )  # fmt: skip


def revived(failed: Failed) -> HeliographError:
    """The error that a worker named."""
    kind = getattr(errors, failed.error, None)
    if not (isinstance(kind, type) and issubclass(kind, HeliographError)):
        kind = WorkerError
    return kind(failed.doing, found=failed.found, required=failed.required, hint=failed.hint)


def _hangs(rows: int, state: State) -> WorkerError:
    doing = "waiting for the worker" if state is State.READY else "starting the worker"
    return WorkerError(
        doing, found=f"no frame for longer than the limit, {rows} rows under way", required="a frame from time to time",
        hint="the device or the machine hangs or is far too busy: see the worker's output",
    )  # fmt: skip


def _lost(found: str) -> WorkerError:
    return WorkerError(
        "talking to the worker", found=found, required="a worker that runs",
        hint="see its output above; `heliograph doctor CORE` checks machine and core",
    )  # fmt: skip


def _status(code: int) -> str:
    return f"its end by {signal.Signals(-code).name}" if code < 0 else f"its end with status {code}"


def _unexpected(message: FromWorker) -> ProtocolError:
    return ProtocolError(
        "talking to the worker", found=f"a {type(message).__name__} at this point",
        required=f"the order of protocol {PROTOCOL}", hint="front and worker must be of one installation",
    )  # fmt: skip
