"""A process of the checker: started, bounded in time, and asked afterwards what it was doing when it ended."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heliograph import _native
from heliograph.runtime.attempt import FAULTED, PROGRESS

STATUS_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended. ``graph`` and ``case`` are what it had begun last, -1 before the first replay."""

    code: int | None  # exit status, negative for a signal, None: the time limit
    stdout: bytes
    stderr: str
    nanoseconds: int
    graph: int
    case: int
    node: int  # running then, or faulted; -1 unknown
    address: int  # of the access that faulted; 0 otherwise

    @property
    def cause(self) -> str:
        if self.code is None:
            return "no end within the time limit"
        if self.code == FAULTED:
            return self.stderr
        return f"{signal.Signals(-self.code).name} at address {self.address:#x}" if self.code < 0 else ""


def run(draft: Path, arguments: Sequence[str], stdin: bytes, limit_seconds: int) -> Ended:
    """Runs ``heliograph.runtime.check`` on a draft and waits, at most as long as the limit says."""
    status, progress = os.memfd_create("status"), os.memfd_create("progress")
    try:
        os.ftruncate(status, STATUS_BYTES)
        os.ftruncate(progress, PROGRESS.size)
        told = [str(number) for number in (os.getpid(), status, progress)]
        command = [sys.executable, "-m", "heliograph.runtime.check", str(draft), *told]
        start = time.perf_counter_ns()
        try:
            done = subprocess.run(  # noqa: S603 - this interpreter, our module
                [*command, *arguments],
                input=stdin,
                capture_output=True,
                pass_fds=(status, progress),
                timeout=limit_seconds,
                check=False,
            )
            code: int | None = done.returncode
            stdout, stderr = done.stdout, done.stderr
        except subprocess.TimeoutExpired as expired:
            code, stdout, stderr = None, b"", expired.stderr or b""
        spent = time.perf_counter_ns() - start
        graph, case = PROGRESS.unpack(os.pread(progress, PROGRESS.size, 0))
        node, address = (-1, 0) if code == 0 else _node(status)
    finally:
        os.close(status)
        os.close(progress)
    text = stderr.decode(errors="replace").strip()
    return Ended(code, stdout, text, spent, graph - 1, case, node, address)


def _node(status: int) -> tuple[int, int]:
    """The node that faulted and the address, else one that was running."""
    with mmap.mmap(status, STATUS_BYTES, access=mmap.ACCESS_READ) as page:
        if not any(page[:64]):
            return -1, 0  # ended before its device was open
        fault = _native.read_fault(page)
        if fault is not None:
            return fault["node"], fault["address"]
        running = _native.read_running(page)
        return (running[0]["node"], 0) if running else (-1, 0)
