"""`heliograph serve` as a program and as a person start it, with a tiny core: what it prints, answers, ends with."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from as_cuda import as_cuda
from fake_cuda.control import FakeCuda
from heliograph.cli.answer import Answer, Server
from heliograph.core.policy import Policy
from heliograph.core.sign import development_key
from heliograph.core.verify import verify
from heliograph.serve.limits import LIMITS
from tiny_models import SMALL, capture_small, random_model, write_hf

HELIOGRAPH = str(Path(sys.executable).parent / "heliograph")
LIMIT = 120.0  # seconds of any wait


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_hf(folder, random_model("llama"))
    return folder


@pytest.fixture(scope="module")
def core(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return capture_small(model, tmp_path_factory.mktemp("cores"))


@pytest.fixture(scope="module")
def cuda_core(core: Path, home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with verify(core, Policy.local(home)) as verified:
        return replace(as_cuda(verified), key=development_key(home)).write(tmp_path_factory.mktemp("cuda"))


class Lines:
    """What a process writes to a descriptor, line by line, each waited for."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._held = descriptor, b""
        self.kept: list[str] = []

    def next(self) -> str | None:
        """The next line; None at the end."""
        end = time.monotonic() + LIMIT
        while b"\n" not in self._held:
            assert select.select([self._descriptor], [], [], max(0.0, end - time.monotonic()))[0], self.kept
            try:
                data = os.read(self._descriptor, 1 << 16)
            except OSError:  # a terminal whose other side is closed
                data = b""
            if not data:
                return None
            self._held += data
        line, _, self._held = self._held.partition(b"\n")
        self.kept.append(line.decode().rstrip("\r"))
        return self.kept[-1]

    def until(self, word: str) -> str:
        while (line := self.next()) is not None:
            if word in line:
                return line
        raise AssertionError(f"{word!r} is not in {self.kept}")

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.kept]


@dataclass
class Running:
    process: subprocess.Popen[bytes]
    lines: Lines
    url: str

    def ask(self, **fields: object) -> Answer:
        request = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "ignore_eos": True, **fields}
        with Answer(Server.at(self.url), request) as answer:
            list(answer)
        return answer

    def exchange(self, path: str, body: object = None) -> tuple[int, bytes]:
        connection = HTTPConnection("127.0.0.1", Server.at(self.url).port, timeout=LIMIT)
        connection.request("POST" if body else "GET", path, json.dumps(body) if body else None)
        response = connection.getresponse()
        answer = response.read()
        connection.close()
        return response.status, answer

    def get(self, path: str, body: object = None) -> tuple[int, Any]:
        status, answer = self.exchange(path, body)
        return status, json.loads(answer)

    def metrics(self) -> dict[str, float]:
        lines = self.exchange("/metrics")[1].decode().splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        while self.lines.next() is not None:
            pass
        return self.process.wait(LIMIT)


@contextmanager
def serving(core: Path, *options: str, program: str = HELIOGRAPH) -> Iterator[Running]:
    """A server whose port is open; it may not be ready."""
    command = [program, "serve", str(core), "--port", "0", *options]
    with started(command) as running:
        yield running


@contextmanager
def started(command: list[str]) -> Iterator[Running]:
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            lines = Lines(process.stdout.fileno())
            yield Running(process, lines, json.loads(lines.until('"listening"'))["url"])
        finally:
            process.kill()


def mapped(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def worker_of(server: Running) -> int:
    names = {child: Path(f"/proc/{child}/comm").read_text().strip() for child in children(server.process.pid)}
    (worker,) = (child for child, name in names.items() if name == "helio-worker")
    return worker


def test_a_program_reads_events_and_an_early_request_is_answered(core: Path) -> None:
    with serving(core) as server:
        answer = server.ask(model="tiny")  # sent before it is ready
        server.lines.until('"ready"')
        worker = worker_of(server)
        for pid in (server.process.pid, *children(server.process.pid)):
            assert "libtorch" not in mapped(pid)
            assert "numpy" not in mapped(pid)
        assert "heliograph/_native" in mapped(worker)
        assert server.end() == 0
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)
    assert answer.tokens == 4
    events = server.lines.events()
    kinds = [event["event"] for event in events]
    assert kinds[0] == "listening"
    assert kinds[-1] == "draining"
    ready = kinds.index("ready")
    phases = {event["name"]: event["nanoseconds"] for event in events[1:ready]}
    assert set(kinds[1:ready]) == {"phase"}
    assert {"front/imports", "front/text", "verify", "weights", "self-tests"} <= phases.keys()
    assert events[ready]["nanoseconds"] > phases["weights"]
    assert events[ready]["numerics"] == "row-invariant"


def test_requests_are_logged_if_asked_for(core: Path) -> None:
    with serving(core, "--log-requests") as server:
        server.ask(model="tiny")
        told = json.loads(server.lines.until('"request"'))
        assert (told["path"], told["status"], told["generated_tokens"]) == ("/v1/chat/completions", 200, 4)
        assert server.end() == 0


def test_a_server_goes_on_when_nobody_reads_what_it_prints(core: Path) -> None:
    with serving(core) as server:
        assert server.process.stdout is not None
        server.process.stdout.close()
        assert server.ask(model="tiny").tokens == 4
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(LIMIT) == 0


def test_the_name_of_the_model_can_be_chosen_and_strict_refuses_unknown_fields(core: Path) -> None:
    with serving(core, "--model", "small", "--strict") as server:
        assert [model["id"] for model in server.get("/v1/models")[1]["data"]] == ["small"]
        request = {"model": "small", "prompt": "Hi", "max_tokens": 1}
        assert server.get("/v1/completions", request)[0] == 200
        status, body = server.get("/v1/completions", {**request, "colour": "red"})
        assert (status, body["error"]["param"]) == (400, "colour")
        assert server.get("/v1/completions", {**request, "model": "tiny"})[0] == 404
        assert server.end(signal.SIGINT) == 0


def test_threads_units_and_wait_all_reach_the_worker(core: Path) -> None:
    with serving(core, "--units", "9", "--wait-all", "--threads", "3") as server:
        server.ask(model="tiny")
        tasks = Path(f"/proc/{worker_of(server)}/task").iterdir()
        assert sum("hg-worker" in (task / "comm").read_text() for task in tasks) == 2  # beside the stream's own
        metrics = server.metrics()
        assert metrics["heliograph_free_blocks"] == 8
        assert metrics["heliograph_prepared_buckets"] == len(SMALL.decode_rows) + len(SMALL.prefill_tokens)
        assert server.end() == 0


def test_a_person_sees_a_table_and_where_it_listens(core: Path) -> None:
    ours, theirs = pty.openpty()
    command = [HELIOGRAPH, "serve", str(core), "--port", "0"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, start_new_session=True)
    os.close(theirs)
    try:
        lines = Lines(ours)
        assert "listening on http://127.0.0.1:" in lines.until("listening on")
        names = [line.split()[0] for line in lines.kept]
        assert names[0] == "phase"
        assert {"front/imports", "verify", "self-tests", "row-invariant:"} <= set(names)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 0
    finally:
        process.kill()
        process.wait(LIMIT)
        os.close(ours)


def failing(*arguments: str) -> tuple[int, dict[str, Any]]:
    run = subprocess.run(
        [HELIOGRAPH, "serve", *arguments, "--json"], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    return run.returncode, json.loads(run.stderr.splitlines()[-1])


def test_a_core_that_does_not_exist_is_an_error_of_cores(tmp_path: Path) -> None:
    code, error = failing(str(tmp_path / "nothing"), "--port", "0")
    assert (code, error["error"]) == (5, "MissingFileError")


def test_a_server_whose_renderer_has_stopped_ends_when_it_is_asked_to(core: Path) -> None:
    with serving(core, "--shutdown-timeout", "0.1") as server, ThreadPoolExecutor(1) as pool:
        server.lines.until('"ready"')
        (renderer,) = {*children(server.process.pid)} - {worker_of(server)}
        os.kill(renderer, signal.SIGSTOP)
        body = {"model": "tiny", "messages": [{"role": "user", "content": "x" * 300_000}]}  # more than a pipe
        pool.submit(server.exchange, "/v1/chat/completions", body)
        time.sleep(0.5)
        try:
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(LIMITS.encode + LIMITS.stop) == 0
        finally:
            with suppress(ProcessLookupError):
                os.kill(renderer, signal.SIGKILL)


@pytest.mark.parametrize("seconds", ["inf", "nan", "-1"])
def test_a_shutdown_timeout_that_is_no_time_is_a_usage_error(tmp_path: Path, seconds: str) -> None:
    command = [HELIOGRAPH, "serve", str(tmp_path), "--shutdown-timeout", seconds]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 2
    assert "--shutdown-timeout" in run.stderr


def test_a_port_that_is_taken_is_a_usage_error(core: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, error = failing(str(core), "--port", str(taken.getsockname()[1]))
    assert (code, error["error"]) == (2, "UsageError")


def test_more_memory_than_there_is_is_an_error_of_devices(core: Path) -> None:
    code, error = failing(str(core), "--port", "0", "--memory", "1MiB")
    assert (code, error["error"]) == (6, "OutOfMemoryError")


def test_the_device_that_is_chosen_serves_and_one_that_is_not_there_is_an_error(
    cuda_core: Path, fake_cuda: FakeCuda
) -> None:
    with serving(cuda_core, "--device", "1") as server:
        assert server.ask(model="tiny").tokens == 4
        assert server.end() == 0
    code, error = failing(str(cuda_core), "--port", "0", "--device", "2")
    assert (code, error["error"]) == (6, "DriverError")


def test_a_device_number_for_a_host_core_is_a_usage_error(core: Path) -> None:
    code, error = failing(str(core), "--port", "0", "--device", "3")
    assert (code, error["error"]) == (2, "UsageError")
    with serving(core, "--device", "0") as server:
        assert server.ask(model="tiny").tokens == 4


def test_it_serves_where_torch_is_not_installed(core: Path, torch_free_python: Path) -> None:
    with serving(core, program=str(torch_free_python.parent / "heliograph")) as server:
        assert server.ask(model="tiny").tokens == 4
        assert server.end() == 0


def test_a_capture_becomes_the_server_of_its_core_in_the_same_process(model: Path, tmp_path: Path) -> None:
    command = [HELIOGRAPH, "capture", str(model), "--cores", str(tmp_path), "--name", "own", "--json"]
    with started([*command, "--then", "serve", "--port", "0"]) as server:
        captured = json.loads(server.lines.kept[0])
        assert captured["core"] == str(tmp_path / "own")
        assert server.ask(model="own").tokens == 4
        server.lines.until('"ready"')
        for pid in (server.process.pid, *children(server.process.pid)):
            assert "libtorch" not in mapped(pid)
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            assert not any(variable.startswith(b"PYTHONHASHSEED=") for variable in variables)
        assert b"serve" in Path(f"/proc/{server.process.pid}/cmdline").read_bytes().split(b"\0")
        assert server.end() == 0


@pytest.mark.parametrize("options", [("--port", "0"), ("--host", "::1"), ("--range-census",), ("--device", "1")])
def test_options_that_would_have_no_effect_are_refused_before_anything_is_captured(
    model: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    command = [HELIOGRAPH, "capture", str(model), "--cores", str(tmp_path), *options, "--json"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert (run.returncode, json.loads(run.stderr)["error"]) == (2, "UsageError")
    assert not any(tmp_path.iterdir())
