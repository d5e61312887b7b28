"""``heliograph serve`` in a process of its own, on a captured model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wire import ask

PATIENCE = 120.0
COMPLETIONS = "/v1/completions"


class Running:
    """A server's process and what it says, one JSON object a line."""

    def __init__(self, core: Path, *options: str) -> None:
        command = [str(Path(sys.executable).parent / "heliograph"), "serve", str(core), "--port", "0", "--json"]
        self.process = subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
        )
        self.said: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.said.extend(map(json.loads, self.process.stdout))

    def heard(self, event: str) -> list[dict[str, Any]]:
        return [each for each in self.said if each["event"] == event]

    def until(self, event: str, count: int = 1) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while len(self.heard(event)) < count:
            assert time.monotonic() < deadline, self.said
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.01)
        return self.heard(event)[count - 1]

    @property
    def url(self) -> str:
        return str(self.until("listening")["url"])

    def workers(self) -> list[int]:
        found = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [each for each in map(int, found) if name_of(each) == "helio-worker"]

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code


def name_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except FileNotFoundError:
        return ""


@contextmanager
def running_server(core: Path, *options: str) -> Iterator[Running]:
    """A server that is ready, and that ends in good order."""
    server = Running(core, *options)
    try:
        server.until("ready")
        yield server
    finally:
        assert server.end() == 0


def complete(server: Running, **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": 20, "ignore_eos": True} | fields
    answer = ask(server.url, COMPLETIONS, body)
    assert answer.status == 200, answer.body
    return answer.json


def gauge(server: Running, name: str) -> float:
    lines = ask(server.url, "/metrics").body.decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"heliograph_{name} ")).split()[1])


def eventually(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
