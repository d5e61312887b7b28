"""A worker in a process of its own, and the front's end of its socket. Every wait is bounded."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from heliograph.serve.frames import PROTOCOL, Decoder, FromFront, FromWorker, Ready, Start, encode

WAIT = 60.0


class WorkerProcess:
    """Made by ``running``."""

    def __init__(self, process: subprocess.Popen[bytes], front: socket.socket) -> None:
        self.process = process
        self.front = front
        self._decoder: Decoder[FromWorker] = Decoder(FromWorker)  # type: ignore[arg-type]

    def send(self, *messages: FromFront) -> None:
        self.front.sendall(b"".join(map(encode, messages)))

    def until(self, wanted: Callable[[FromWorker], bool]) -> list[FromWorker]:
        """All messages up to the wanted one, or to the end of the stream."""
        taken: list[FromWorker] = []
        while True:
            for message in self._decoder.feed(b""):
                taken.append(message)
                if wanted(message):
                    return taken
            data = self.front.recv(1 << 16)
            if not data:
                return taken
            for message in self._decoder.feed(data):
                taken.append(message)
                if wanted(message):
                    return taken

    def start(self, core: Path, *, wait_all: bool = False) -> list[FromWorker]:
        self.send(Start(PROTOCOL, str(core), threads=1, units=30, wait_all=wait_all))
        return self.until(lambda message: isinstance(message, Ready))

    def end(self) -> int:
        """The exit code."""
        return self.process.wait(WAIT)


@contextmanager
def running(*command: str, environment: Mapping[str, str] | None = None) -> Iterator[WorkerProcess]:
    """``command``: instead of the worker's own."""
    front, worker = socket.socketpair()
    front.settimeout(WAIT)
    program = command or ("-m", "heliograph.serve.worker")
    with front, worker:
        process = subprocess.Popen(
            [sys.executable, *program, str(worker.fileno())], pass_fds=[worker.fileno()],
            env={**os.environ, **(environment or {})},
        )  # fmt: skip
        worker.close()
        try:
            yield WorkerProcess(process, front)
        finally:
            process.kill()
            process.wait(WAIT)
