"""A worker process: started before anything heavy is imported, waited for by its pidfd, reaped."""

from __future__ import annotations

import os
import signal
import socket
import sys

# By path: with -m an interpreter starts 4 ms later.
WORKER = os.path.join(os.path.dirname(os.path.dirname(__file__)), "worker", "__main__.py")


class Process:
    """A worker's process and our end of its socket. Reaped by :meth:`ended`."""

    def __init__(self, pid: int, end: socket.socket) -> None:
        self.pid = pid
        self._reaped = False  # from then on the number may be another process's
        self.socket = end

    def kill(self) -> None:
        """No effect on one that has ended."""
        if not self._reaped:
            os.kill(self.pid, signal.SIGKILL)

    async def ended(self) -> int:
        """Waits until the process has ended, however long that takes; gives its exit status, negative for a signal."""
        import asyncio  # noqa: PLC0415  20 ms that must not delay the spawn

        descriptor = os.pidfd_open(self.pid)
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        try:
            loop.add_reader(descriptor, over.set)
            await over.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        _, status = os.waitpid(self.pid, 0)
        self._reaped = True
        return os.waitstatus_to_exitcode(status)


def spawn() -> Process:
    """Starts a worker. It is in a process group of its own: Ctrl-C in a terminal is for the front alone."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        os.set_inheritable(theirs.fileno(), True)
        command = [sys.executable, "-P", WORKER, str(theirs.fileno())]
        pid = os.posix_spawn(sys.executable, command, os.environ, setpgroup=0)
    return Process(pid, ours)
