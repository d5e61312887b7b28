"""The first worker and the process that renders chat templates, as copies of the process that becomes the front.

They are made when everything is imported that the front and one of them need, and nothing else: that is two starts of
an interpreter and two times those imports less, a sixth of the processor time of a start. Later ones are started by
exec (``front.spawn``, ``runtime.template``), for a copy is safe only of a process with one thread and no files open:
so only the console command does this, before anything else.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import NamedTuple, NoReturn

# What a front and its worker both import, and what a front and its renderer do.
import heliograph.core.verify_text
import heliograph.serve.frames  # noqa: F401
from heliograph.runtime.template import MEMORY_BYTES  # noqa: F401
from heliograph.serve.front.spawn import Process

MAX_DESCRIPTORS = 1 << 16  # more than this process can have open: it has just begun


class Renderer:
    """A process as ``runtime.template`` knows them, of ``subprocess``, but not started by it."""

    def __init__(self, pid: int, stdin: int, stdout: int) -> None:
        self.pid = pid
        self.stdin = os.fdopen(stdin, "wb")
        self.stdout = os.fdopen(stdout, "rb", buffering=0)
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if ended else None
        return self._code

    def wait(self) -> int:
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code

    def kill(self) -> None:
        """From any thread, also while another waits."""
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class Copies(NamedTuple):
    """Both end by themselves when this process does."""

    worker: Process
    renderer: Renderer


def make_copies() -> Copies:
    worker = _fork_worker()
    return Copies(worker, _fork_renderer())


def _fork_worker() -> Process:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)

    def work() -> int:
        began = time.perf_counter_ns()
        ours.close()
        from heliograph.serve.worker.main import main  # noqa: PLC0415  a front needs none of it

        return main(theirs.detach(), began)

    pid = _fork(work)
    theirs.close()
    return Process(pid, ours)


def _fork_renderer() -> Renderer:
    (source, stdin), (stdout, sink) = os.pipe(), os.pipe()

    def render() -> int:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for number, descriptor in enumerate((source, sink, nowhere)):
            os.dup2(descriptor, number)
        os.closerange(3, MAX_DESCRIPTORS)
        from heliograph.runtime.render import main  # noqa: PLC0415  a front has no engine of templates

        gc.freeze()  # what it shares with the front stays shared
        gc.enable()
        main()
        return 0

    pid = _fork(render)
    os.close(source)
    os.close(sink)
    return Renderer(pid, stdin, stdout)


def _fork(life: Callable[[], int]) -> int:
    """A copy that runs ``life`` and ends with the code that it gives; nothing of the original runs in it afterwards.

    It is in a process group of its own: Ctrl-C in a terminal is for the front alone.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the copy ignores it
    pid = os.fork()
    if not pid:
        _live(life, mask)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return pid


def _live(life: Callable[[], int], mask: set[signal.Signals | int]) -> NoReturn:
    code = 1
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        code = life()
    except BaseException:  # noqa: BLE001  shown as an interpreter shows what nobody caught
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)
