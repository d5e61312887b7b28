"""What ``heliograph serve`` calls. The order is for the time to the first token: the worker is spawned and told its
core before anything heavy is imported, then the port is bound; the tokenizer is read in a thread meanwhile.
"""

from __future__ import annotations

import contextlib
import gc
import resource
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from heliograph.core.folder import CoreFolder
from heliograph.errors import HeliographError, UsageError
from heliograph.runtime.template import Process as Renderer
from heliograph.serve.front.spawn import Process, spawn
from heliograph.serve.limits import LIMITS

if TYPE_CHECKING:
    from heliograph.serve.front.face import Face

BACKLOG = 2048  # connections that wait to be accepted
ENDING = (signal.SIGTERM, signal.SIGINT)  # they end a server in good order


class Options(msgspec.Struct, frozen=True):
    """Zeros and empty strings mean "not given"."""

    core: Path
    host: str = "127.0.0.1"
    port: int = 0  # 0: any free one
    device: int = 0  # number of the CUDA device
    threads: int = 0  # of the worker that run kernels
    units: int = 0  # KV blocks
    memory: int = 0  # bytes
    wait_all: bool = False  # every bucket before ready
    strict: bool = False  # refuse unknown fields of requests
    alias: str = ""  # model name in the API; else the core's name as signed
    shutdown: float = LIMITS.shutdown  # seconds that running requests may take to end
    log_requests: bool = False  # tell the report of each


class Answered(msgspec.Struct, frozen=True):
    """A request whose answer has ended, for the log. Times are nanoseconds from its head on; nothing of its text."""

    id: str
    method: str
    path: str
    status: int  # 499: the client had gone before there was one
    nanoseconds: int
    prompt_tokens: int = 0
    generated_tokens: int = 0
    first_token: int = 0  # from when it was submitted
    ends: tuple[str, ...] = ()  # of its rows


class Report(Protocol):
    """Told what happens, in the thread that called ``serve``."""

    def listening(self, url: str) -> None:
        """The port is bound: clients may connect, early requests are held."""

    def phase(self, name: str, nanoseconds: int) -> None:
        """A phase of the start has ended; ``front/...`` are ours, the others the worker's."""

    def ready(self, nanoseconds: int, numerics: str) -> None:
        """Requests are answered from now on; time since ``serve`` was called or the last worker ended, and what the
        core promises."""

    def restarting(self, error: HeliographError) -> None:
        """The worker ended; another one is started."""

    def answered(self, request: Answered) -> None:
        """With ``log_requests``: the answer of a request has ended."""

    def draining(self) -> None:
        """A signal came: running requests may end, new ones are refused."""


def serve(options: Options, report: Report, process: Process | None = None, renderer: Renderer | None = None) -> int:
    """Serves until a signal ends it, then gives 0. Raises the error that ended the server otherwise.

    process, renderer: a worker and a process that renders chat templates which were started already, so that they
    start beside what the caller still had to do.
    """
    began = time.monotonic()
    gc.disable()  # imports make no garbage, and walking what they made is 6 % of their time
    process = process or spawn()
    with contextlib.ExitStack() as undo:
        came = undo.enter_context(signals_kept())
        undo.callback(process.socket.close)
        undo.callback(process.kill)
        undo.callback(gc.enable)
        tell_start(process, options)
        listener = undo.enter_context(listen(options.host, options.port))
        check_path(options.core)
        report.listening(url_of(listener))
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  no import before the spawn that can wait

        face = ThreadPoolExecutor(1, "face").submit(_load_face, options.core, renderer)
        raise_descriptors()
        before = time.perf_counter_ns()
        from heliograph.serve.front.server import run  # noqa: PLC0415  100 ms of imports, while the worker starts

        gc.freeze()  # no later collection need walk it either
        gc.enable()
        report.phase("front/imports", time.perf_counter_ns() - before)
        return run(options, process, listener, face, report, began, came)


@contextlib.contextmanager
def signals_kept() -> Iterator[list[int]]:
    """SIGTERM and SIGINT that come before an event loop takes them: they are in the list given, and end nothing."""
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in ENDING}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def tell_start(process: Process, options: Options) -> None:
    """Tells a worker what to load at once, so that it need not wait for the front."""
    from heliograph.serve.frames import PROTOCOL, Start, encode  # noqa: PLC0415  while its interpreter starts

    start = Start(
        protocol=PROTOCOL, core=str(options.core), device=options.device, threads=options.threads,
        units=options.units, memory=options.memory, wait_all=options.wait_all,
    )  # fmt: skip
    with contextlib.suppress(BrokenPipeError):  # it has died: whoever reads from it will see that
        process.socket.sendall(encode(start))


def check_path(core: Path) -> None:
    """Microseconds, so that nobody is told of a server whose path is mistyped. Raises what ``core.verify`` does."""
    folder = CoreFolder(core)
    try:
        folder.check_names()
    finally:
        folder.close()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. UsageError if the address cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except BaseException:
            listener.close()
            raise
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"listening on {host} port {port}", found=str(error), required="an address of this machine and a free port",
            hint="another server may run there: choose another port, or 0 for any free one",
        ) from error  # fmt: skip
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def raise_descriptors() -> None:
    """A connection costs a descriptor: allow as many as the system lets us."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _load_face(core: Path, renderer: Renderer | None) -> Face:
    from heliograph.serve.front.face import load_face  # noqa: PLC0415  in its thread, beside the server's imports

    return load_face(core, renderer)
