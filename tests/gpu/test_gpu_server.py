"""A capture on a GPU that becomes the server of its core: what it answers alone it answers in company."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from gpu.runs import LIMIT_SECONDS
from tiny_models import random_model, write_hf

pytestmark = pytest.mark.gpu
PROMPTS = [f"the world {number}" for number in range(12)]


def until(process: subprocess.Popen[str], event: str) -> dict[str, Any]:
    assert process.stdout is not None
    for line in process.stdout:
        told: dict[str, Any] = json.loads(line)
        if told.get("event") == event:
            return told
    raise AssertionError(f"it ended without {event}")


def complete(port: int, prompt: str) -> str:
    connection = HTTPConnection("127.0.0.1", port, timeout=LIMIT_SECONDS)
    asked = {"model": "own", "prompt": prompt, "max_tokens": 24, "ignore_eos": True, "seed": 7, "temperature": 1}
    connection.request("POST", "/v1/completions", json.dumps(asked))
    answer = json.loads(connection.getresponse().read())
    connection.close()
    assert answer["usage"]["completion_tokens"] == 24
    return str(answer["choices"][0]["text"])


def processes(leader: int) -> list[int]:
    """A process and those that it started, and they."""
    found = [leader]
    for pid in found:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def test_a_capture_becomes_a_server_whose_answers_do_not_depend_on_company(tmp_path: Path) -> None:
    write_hf(tmp_path / "model", random_model("llama"))
    command = [sys.executable, "-m", "heliograph", "capture", str(tmp_path / "model"), "--target", "cuda", "--json"]
    command += ["--cores", str(tmp_path), "--name", "own", "--then", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            port = int(until(process, "listening")["url"].rpartition(":")[2])
            until(process, "ready")
            alone = [complete(port, prompt) for prompt in PROMPTS]
            assert len(set(alone)) > len(PROMPTS) // 2
            with ThreadPoolExecutor(len(PROMPTS)) as pool:
                assert list(pool.map(lambda prompt: complete(port, prompt), PROMPTS)) == alone
            for pid in processes(process.pid):
                assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()
            process.send_signal(signal.SIGTERM)
            assert process.wait(LIMIT_SECONDS) == 0
        finally:
            process.kill()
