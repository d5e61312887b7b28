"""``heliograph serve`` on a captured model: real front, real worker, in processes of their own."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from real_server import COMPLETIONS, PATIENCE, Running, complete, eventually, gauge, name_of, running_server
from wire import ask, connect, post

from tiny_models import capture_small, random_model, write_hf


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_hf(folder / "model", random_model("llama"))
    return capture_small(folder / "model", folder / "cores")


@pytest.fixture(scope="module")
def running(core: Path) -> Iterator[Running]:
    with running_server(core) as server:
        yield server


def test_the_official_client_streams_what_it_gets_whole(running: Running) -> None:
    client = openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE)
    request: dict[str, Any] = {
        "model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 20,
    }  # fmt: skip
    whole = client.chat.completions.create(**request).choices[0]
    chunks = list(client.chat.completions.create(stream=True, **request))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.message.content
    assert chunks[-1].choices[0].finish_reason == whole.finish_reason


def test_a_seeded_answer_is_the_same_alone_and_beside_others(running: Running) -> None:
    """E18: neighbours join and leave, with seeds and without."""
    request = {"seed": 5, "temperature": 1.0, "max_tokens": 40}
    alone = complete(running, **request)["choices"][0]["text"]
    draw = random.Random(1)

    def neighbour(number: int) -> None:
        complete(running, prompt="x" * draw.randrange(1, 30), max_tokens=draw.randrange(1, 30), temperature=1.5)

    with ThreadPoolExecutor(8) as pool:
        others = [pool.submit(neighbour, number) for number in range(24)]
        together = [pool.submit(complete, running, **request) for _ in range(6)]
        assert {answer.result()["choices"][0]["text"] for answer in together} == {alone}
        for other in others:
            other.result()
    many = complete(running, n=3, **request)["choices"]
    assert many[0]["text"] == alone
    assert len({choice["text"] for choice in many}) == 3


def test_counters_of_the_real_rounds_add_up(running: Running) -> None:
    names = ("round_emitted_tokens_total", "prefill_emitted_tokens_total", "rounds_total")
    before = [gauge(running, name) for name in names]
    usage = complete(running, max_tokens=30)["usage"]
    emitted, first, rounds = (gauge(running, name) - was for name, was in zip(names, before, strict=True))
    assert usage["completion_tokens"] == 30
    assert (emitted, first, rounds) == (29, 1, 29)


def test_stop_tokens_are_held_back_for_the_least_tokens(running: Running) -> None:
    (likely,) = ask(running.url, "/tokenize", {"prompt": "a"}).json["tokens"]
    request = {"temperature": 0, "logit_bias": {str(likely): 100}, "stop_token_ids": [likely]}
    stopped = complete(running, **request)
    assert (stopped["usage"]["completion_tokens"], stopped["choices"][0]["finish_reason"]) == (0, "stop")
    held = complete(running, min_tokens=4, **request)
    assert (held["usage"]["completion_tokens"], held["choices"][0]["finish_reason"]) == (4, "stop")
    assert complete(running, **(request | {"stop_token_ids": []}))["choices"][0]["text"] == "a" * 20


def test_a_prompt_at_the_context_has_one_token_and_a_longer_one_is_refused(running: Running) -> None:
    """E14"""
    context = ask(running.url, "/v1/models").json["data"][0]["max_model_len"]
    answer = complete(running, prompt=[5] * (context - 1), max_tokens=2**31)
    assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (1, "length")
    refused = ask(running.url, COMPLETIONS, {"model": "tiny", "prompt": [5] * context})
    assert (refused.status, refused.error["code"]) == (400, "context_length_exceeded")


def test_blocks_of_clients_that_leave_come_back(running: Running) -> None:
    """E5"""
    complete(running)
    eventually(lambda: gauge(running, "rows_running") == 0)
    free = gauge(running, "free_blocks")
    draw = random.Random(2)
    for _ in range(60):
        with connect(running.url) as leaves:
            body = {"model": "tiny", "prompt": "y" * 40, "max_tokens": 50, "n": 2, "stream": draw.random() < 0.5}
            leaves.sendall(post(COMPLETIONS, body))
            time.sleep(draw.choice([0, 0.001, 0.005, 0.02]))
    eventually(lambda: gauge(running, "free_blocks") == free)  # said when they leave, not with the next answer
    complete(running)


def test_a_killed_worker_is_replaced(core: Path) -> None:
    """E4"""
    server = Running(core)
    try:
        server.until("ready")
        before = complete(server, temperature=0)["choices"][0]["text"]
        (worker,) = server.workers()
        with connect(server.url) as connection:
            body = {"model": "tiny", "prompt": "z", "max_tokens": 80, "ignore_eos": True, "stream": True, "n": 4}
            connection.sendall(post(COMPLETIONS, body))
            connection.recv(100)
            os.kill(worker, signal.SIGKILL)
            data = b""
            while b"[DONE]" not in data:
                part = connection.recv(1 << 16)
                assert part
                data += part
        server.until("ready", 2)
        assert complete(server, temperature=0)["choices"][0]["text"] == before
        assert server.workers() != [worker]
    finally:
        assert server.end() == 0
    assert server.heard("restarting")


def test_a_signal_ends_the_server_and_its_worker(core: Path) -> None:
    server = Running(core)
    server.until("ready")
    (worker,) = server.workers()
    assert server.end() == 0
    assert name_of(worker) == ""
    assert server.heard("draining")


def test_a_signal_before_ready_ends_it_too(core: Path) -> None:
    server = Running(core, "--wait-all")
    server.until("listening")
    server.until("phase")
    (worker,) = server.workers()
    assert server.end() == 0
    eventually(lambda: name_of(worker) == "")


@pytest.mark.parametrize("event", ["listening", "phase"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_good_order_from_the_first_thing_it_says(
    core: Path, event: str, number: signal.Signals
) -> None:
    """Each signal comes at once, as by a supervisor that reads the line: before the event loop exists."""
    code = f"""
import os, sys
from pathlib import Path
from heliograph.cli.serve import Lines, Out
from heliograph.serve.front.start import Options, serve

class Signalled(Lines):
    def _say(self, event, **fields):
        super()._say(event, **fields)
        if event == {event!r} and fields.get("name", "front/imports") == "front/imports":
            os.kill(os.getpid(), {int(number)})

with Out() as out:
    sys.exit(serve(Options(core=Path({str(core)!r})), Signalled(out)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert '"draining"' in done.stdout


def test_a_core_that_was_altered_is_not_served(core: Path, tmp_path: Path) -> None:
    altered = tmp_path / "altered"
    subprocess.run(["cp", "-r", str(core), str(altered)], check=True)
    (altered / "core.json").write_bytes((core / "core.json").read_bytes() + b" ")
    server = Running(altered)
    assert server.process.wait(PATIENCE) == 5
    assert "SignatureError" in server.process.communicate()[1]


def test_a_core_that_is_not_there_is_not_served(tmp_path: Path) -> None:
    server = Running(tmp_path / "nowhere")
    assert server.process.wait(PATIENCE) == 5
