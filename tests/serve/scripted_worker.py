"""A worker without a device: it speaks frames over a real socket pair and gives the tokens that a script says."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from heliograph.serve.frames import (
    PROTOCOL,
    Cancel,
    Decoder,
    Ended,
    Failed,
    FromFront,
    FromWorker,
    Gain,
    Hello,
    Launched,
    Load,
    Loaded,
    Phase,
    Ready,
    Start,
    Stop,
    Submit,
    encode,
)

LOADED = Loaded(concurrency=8, blocks=64, block_tokens=16, biases=64)


@dataclass(frozen=True)
class Line:
    """What a row is given: tokens, one a launch unless they come in groups, and its end."""

    tokens: Sequence[int | Sequence[int]]
    end: str = "stop"  # "length" | "refused" | "cancelled"
    message: str = ""


@dataclass
class Script:
    """How a worker behaves; tests change it while it runs. ``line`` gets the submission and the row's place in it."""

    line: Callable[[Submit, int], Line]
    interval: float = 0.0  # seconds between launches
    digest: str = "d" * 64
    protocol: int = PROTOCOL
    loaded: Loaded = LOADED
    fails: Failed | None = None  # said instead of Loaded
    fails_tests: Failed | None = None  # said instead of Ready, by one worker
    testing: asyncio.Event | None = None  # waited for between Loaded and Ready
    start_delay: float = 0.0
    dies_after: int = -1  # launches, in the middle of a frame
    hangs_after: int = -1  # launches; it stays alive and says nothing
    deaf: bool = False  # reads nothing
    ignores_stop: bool = False  # and the end of its socket
    broken: bytes = b""  # written after Loaded and Ready, whatever it is, by one worker


@dataclass
class Told:
    """What all workers of a server were told, for tests to look at."""

    starts: list[Start] = field(default_factory=list)
    submits: list[Submit] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    launches: list[Launched] = field(default_factory=list)
    workers: list[ScriptedWorker] = field(default_factory=list)
    under_way: set[int] = field(default_factory=set)  # rows
    heard: list[str] = field(default_factory=list)  # names of the messages of all workers


def gains_of(line: Line, limit: int) -> list[tuple[tuple[int, ...], str]]:
    """The tokens of each launch and the row's end after them, within the limit of a submission."""
    gains, left = [], limit
    for group in line.tokens:
        tokens = (group,) if isinstance(group, int) else tuple(group)
        gains.append((tokens[:left], ""))
        left -= len(tokens)
        if left <= 0:
            return [*gains[:-1], (gains[-1][0], "length")]
    return [*gains[:-1], (gains[-1][0], line.end)] if gains else [((), line.end)]


class ScriptedWorker:
    """Stands for a process: ``kill`` ends it, ``ended`` waits for that. Made in the loop that it runs in."""

    def __init__(self, script: Script, told: Told) -> None:
        self.socket, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._script, self._told = script, told
        self._lines: dict[int, list[tuple[tuple[int, ...], str]]] = {}
        self._ends: dict[int, Line] = {}
        self._hangs = False
        self._fresh: list[int] = []  # rows that wait for their prefill
        self._work = asyncio.Event()
        self._over = asyncio.Event()
        self._status = 0
        self._task = asyncio.ensure_future(self._run())
        told.workers.append(self)
        self.socket.sendall(encode(Start(protocol=PROTOCOL, core="core")))  # as who launches a worker does

    def kill(self) -> None:
        if not self._over.is_set():
            self._end(-9)

    async def ended(self) -> int:
        await self._over.wait()
        return self._status

    def _end(self, status: int) -> None:
        self._status = status
        self._told.under_way -= self._lines.keys()
        self._over.set()
        self._task.cancel()

    async def _run(self) -> None:
        reader, self._writer = await asyncio.open_unix_connection(sock=self._theirs)
        listening = asyncio.ensure_future(self._listen(reader))
        try:
            await self._serve()
        finally:
            listening.cancel()
            self._writer.transport.abort()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        decoder = Decoder[FromFront](FromFront)
        while data := await reader.read(1 << 16):
            while self._script.deaf:
                await asyncio.sleep(0.002)
            for message in decoder.feed(data):
                self._hear(message)
        if not (self._over.is_set() or self._script.ignores_stop):
            self._end(0)  # its front is gone

    def _hear(self, message: FromFront) -> None:
        self._told.heard.append(type(message).__name__)
        if isinstance(message, Start):
            self._told.starts.append(message)
            self._work.set()
        elif isinstance(message, Submit):
            self._told.submits.append(message)
            for place, (row, _) in enumerate(message.rows):
                line = self._script.line(message, place)
                self._lines[row] = gains_of(line, message.limit)
                self._ends[row] = line
                self._fresh.append(row)
            self._told.under_way |= {row for row, _ in message.rows}
            self._work.set()
        elif isinstance(message, Cancel):
            for row in message.rows:
                self._told.cancelled.append(row)
                says = row in self._lines and not self._hangs
                self._drop(row)
                if says:
                    self._say(Ended(row, "cancelled", self._load))
        elif isinstance(message, Stop) and not self._script.ignores_stop:
            self._end(0)

    @property
    def _load(self) -> Load:
        return Load(len(self._lines), 0, 60)

    def _drop(self, row: int) -> None:
        self._lines.pop(row, None)
        self._told.under_way.discard(row)
        if row in self._fresh:
            self._fresh.remove(row)

    async def _serve(self) -> None:
        script = self._script
        await self._work.wait()
        await asyncio.sleep(script.start_delay)
        self._say(Hello(script.protocol, script.digest, "scripted"))
        self._say(Phase("map", 1_000_000))
        if script.fails is not None:
            self._say(script.fails)
            await self._writer.drain()
            self._over.set()
            self._status = 5
            return
        self._say(script.loaded)
        testing = asyncio.ensure_future(self._test())
        if script.testing is None:
            await testing
        self._writer.write(script.broken)
        script.broken = b""
        count = 0
        while True:
            if not self._lines:
                self._work.clear()
                await self._work.wait()
            await asyncio.sleep(script.interval)
            if script.hangs_after >= 0 and count >= script.hangs_after:
                self._hangs = True
                await asyncio.Event().wait()
            if not self._lines:
                continue
            launched = self._launch()
            if launched is None:
                continue
            if 0 <= script.dies_after <= count:
                self._writer.write(encode(launched)[:-1])
                await self._writer.drain()
                self._end(-11)
                return
            count += 1
            self._told.launches.append(launched)
            self._say(launched)
            await self._writer.drain()

    async def _test(self) -> None:
        if self._script.testing is not None:
            await self._script.testing.wait()
        fails, self._script.fails_tests = self._script.fails_tests, None
        if fails is None:
            self._say(Phase("self-tests", 2_000_000))
            self._say(Ready())
        else:
            self._say(fails)
            await self._writer.drain()
            self._end(1)

    def _launch(self) -> Launched | None:
        """The prefill of a row that waits for it, else a round of all rows."""
        if self._fresh:
            rows, entry = [self._fresh.pop(0)], "prefill"
        else:
            rows, entry = list(self._lines), "decode"
        gains = []
        for row in rows:
            tokens, end = self._lines[row].pop(0)
            if end in ("refused", "cancelled"):
                message = self._ends[row].message
                self._drop(row)
                self._say(Ended(row, end, self._load, message))
                continue
            gains.append(Gain(row, tokens, end))
            if end:
                self._drop(row)
        if not gains:
            return None
        return Launched(
            entry=entry, bucket=len(gains), real=len(gains), nanoseconds=1_000_000, gains=tuple(gains),
            load=self._load, prepared=4,
        )  # fmt: skip

    def _say(self, message: FromWorker) -> None:
        self._writer.write(encode(message))
