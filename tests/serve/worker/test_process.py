"""The worker as a process, on a real core: what it says, when it ends, and that its tokens are those of single runs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from worker_process import WorkerProcess, running

from heliograph.core.policy import Policy
from heliograph.core.verify import verify
from heliograph.runtime.generate import generate
from heliograph.runtime.load import load
from heliograph.runtime.sampling import Sampling
from heliograph.serve.frames import (
    PROTOCOL,
    Cancel,
    Ended,
    Failed,
    FromWorker,
    Hello,
    Launched,
    Load,
    Loaded,
    Phase,
    Ready,
    Settings,
    Start,
    Stop,
    Submit,
)
from heliograph.serve.limits import LIMITS
from heliograph.serve.worker.refusals import LARGEST

PROMPT = tuple(range(100, 150))
EOS = (2,)
SETTINGS = Settings(temperature=1.2, top_k=50, presence=0.5, frequency=0.2, repetition=1.1)
SOME = (Settings(), SETTINGS)


@pytest.fixture
def worker(tiny_core: Path) -> Iterator[WorkerProcess]:
    with running() as worker:
        worker.start(tiny_core)
        yield worker


def run(worker: WorkerProcess, *orders: Submit) -> tuple[dict[int, list[int]], list[Launched]]:
    """Every row's tokens, once all of them have ended."""
    left = {row for order in orders for row, _ in order.rows}
    worker.send(*orders)
    tokens: dict[int, list[int]] = defaultdict(list)

    def done(message: FromWorker) -> bool:
        if isinstance(message, Launched):
            for gain in message.gains:
                tokens[gain.row] += gain.tokens
                left.difference_update([gain.row] if gain.end else [])
        return not left

    launched = [message for message in worker.until(done) if isinstance(message, Launched)]
    assert not left
    return tokens, launched


def single_runs(core: Path, order: Submit) -> Mapping[int, list[int]]:
    given, bias = order.settings, dict(order.settings.bias)
    with verify(core, Policy.local()) as verified, load(verified, ready=()) as program:
        return {
            row: list(generate(program, order.prompt, order.limit, Sampling(**given.numbers, bias=bias, seed=seed)))
            for row, seed in order.rows
        }


# ---- start -----------------------------------------------------------------------------------------------------------
def test_a_worker_says_which_core_it_verified_how_long_phases_took_and_what_it_offers(tiny_core: Path) -> None:
    with running() as worker:
        said = worker.start(tiny_core)
        with verify(tiny_core, Policy.local()) as verified:
            assert [each for each in said if isinstance(each, Hello)] == [
                Hello(PROTOCOL, verified.digest, verified.name)
            ]
        phases = [each.name for each in said if isinstance(each, Phase)]
        assert phases[:2] == ["imports", "verify"]
        assert {"device", "weights", "self-tests"} <= set(phases)
        assert len(set(phases)) == len(phases)
        assert "total" not in phases
        assert said.index(next(each for each in said if isinstance(each, Hello))) < phases.index("verify") + 1
        assert Loaded(concurrency=4, blocks=29, block_tokens=16, biases=32) in said
        assert phases[-1] == "self-tests"
        assert said[-1] == Ready()


def test_a_worker_has_nothing_in_memory_that_it_does_not_need(worker: WorkerProcess) -> None:
    maps = Path(f"/proc/{worker.process.pid}/maps").read_text()
    found = set(re.findall(r"site-packages/([a-z0-9_]+)", maps)) & {"torch", "numpy", "tokenizers", "uvloop"}
    assert found == set()


def test_a_worker_imports_no_module_that_it_does_not_need() -> None:
    script = "import sys, heliograph.serve.worker.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    modules = set(done.stdout.split())
    assert "heliograph.runtime.steps" in modules
    assert not modules & {
        "torch", "numpy", "tokenizers", "minijinja", "click", "rich", "starlette", "uvicorn", "asyncio",
        "heliograph.models", "heliograph.capture", "heliograph.cli", "heliograph.serve.front",
    }  # fmt: skip


def test_a_worker_that_waits_for_all_has_every_bucket_ready_at_once(tiny_core: Path) -> None:
    with running() as worker:
        worker.start(tiny_core, wait_all=True)
        _, launched = run(worker, Submit(((1, 0),), PROMPT, 1))
        assert launched[0].prepared == 5


def test_an_idle_worker_builds_the_buckets_that_are_left(tiny_core: Path) -> None:
    with running() as worker:
        worker.start(tiny_core)
        end = time.monotonic() + 60
        for row in range(10_000):
            _, launched = run(worker, Submit(((row, 0),), PROMPT, 1))
            if launched[-1].prepared == 5:
                break
            assert time.monotonic() < end
            time.sleep(2 * LIMITS.quiet)
        run(worker, Submit(((20_000, 0), (20_001, 1)), PROMPT, 3))  # decodes in the bucket of two


# ---- tokens ----------------------------------------------------------------------------------------------------------
def test_copies_have_the_tokens_of_single_runs_with_their_seeds(worker: WorkerProcess, tiny_core: Path) -> None:
    order = Submit(((1, 5), (2, -6), (3, 7), (4, 2**63 - 1)), PROMPT, 12, stops=EOS, settings=SETTINGS)
    tokens, launched = run(worker, order)
    assert tokens == single_runs(tiny_core, order)
    assert len({tuple(each) for each in tokens.values()}) == 4
    assert max(each.real for each in launched if each.entry == "decode") == 4


def test_streams_in_company_have_the_tokens_of_their_single_runs(worker: WorkerProcess, tiny_core: Path) -> None:
    orders = [
        Submit(
            ((row, row * 11),), PROMPT[: 3 + 9 * row], 10 + row, stops=EOS, settings=SETTINGS if row % 2 else Settings()
        )
        for row in range(1, 6)
    ]
    tokens, launched = run(worker, *orders)
    for order in orders:
        assert {row: tokens[row] for row, _ in order.rows} == single_runs(tiny_core, order)
    assert sum(len(gain.tokens) for each in launched for gain in each.gains) == sum(map(len, tokens.values()))
    assert launched[-1].load == Load(0, 0, 29)


@pytest.mark.parametrize("after", range(0, 12, 2))
def test_a_row_that_is_cancelled_at_any_point_leaves_the_others_and_the_memory_as_they_were(
    worker: WorkerProcess, tiny_core: Path, after: int
) -> None:
    kept = Submit(((1, 3),), PROMPT[:20], 14, stops=EOS, settings=SETTINGS)
    gone = Submit(((2, 4), (3, 5)), PROMPT, 40, settings=SETTINGS)
    worker.send(gone, kept)
    seen = [message for _ in range(after) for message in worker.until(lambda each: isinstance(each, Launched))]
    worker.send(Cancel((2, 3)))
    ended: list[int] = []

    def done(message: FromWorker) -> bool:
        if isinstance(message, Ended):
            ended.append(message.row)
        elif isinstance(message, Launched):
            ended.extend(gain.row for gain in message.gains if gain.end)
        return len(ended) == 3

    for message in seen:
        done(message)
    seen += worker.until(done)
    assert sorted(ended) == [1, 2, 3]
    launched = [each for each in seen if isinstance(each, Launched)]
    tokens = [token for each in launched for gain in each.gains if gain.row == 1 for token in gain.tokens]
    assert tokens == single_runs(tiny_core, kept)[1]
    worker.send(Submit(((4, 0),), (1,), 1))
    (last,) = worker.until(lambda each: isinstance(each, Launched))
    assert isinstance(last, Launched)
    assert last.load.free_blocks == 29


def test_a_refused_submit_leaves_the_worker_alive(worker: WorkerProcess) -> None:
    tokens = [Submit(((number, 0),), bad, 1) for number, bad in enumerate(((264,), (2**31 - 1,), (1,) * 97))]
    for number, submit in enumerate([*tokens, Submit(((3, 0),), (1,), 1, settings=Settings(top_k=2**31))]):
        worker.send(submit)
        (ended,) = worker.until(lambda message: isinstance(message, Ended))
        assert isinstance(ended, Ended)
        assert (ended.row, ended.end, bool(ended.message)) == (number, "refused", True)
    given, _ = run(worker, Submit(((9, 0),), (263,), 2, settings=Settings(top_k=2**31 - 1)))
    assert len(given[9]) == 2


EXTREMES: list[dict[str, Any]] = [
    {"temperature": 5e-324}, {"temperature": 1e-40}, {"temperature": LARGEST}, {"top_k": 2**31 - 1}, {"top_p": 0.0},
    {"min_p": 1.0}, {"presence": LARGEST}, {"presence": -LARGEST}, {"frequency": LARGEST}, {"frequency": -LARGEST},
    {"repetition": 0.0}, {"repetition": 1e-40, "top_k": 1}, {"repetition": 1e-40, "top_p": 0.5},
    {"repetition": LARGEST}, {"bias": tuple((token, LARGEST) for token in range(32))},
    {"bias": tuple((token, -LARGEST) for token in range(32))},
]  # fmt: skip


def test_extreme_settings_give_tokens_of_the_vocabulary(worker: WorkerProcess) -> None:
    orders = [
        Submit(((row, row),), PROMPT, 4, settings=Settings(**{"temperature": 1.0, **extreme}))
        for row, extreme in enumerate(EXTREMES)
    ]
    tokens, _ = run(worker, *orders)
    assert {len(each) for each in tokens.values()} == {4}
    assert all(0 <= token < 264 for each in tokens.values() for token in each)


def test_rows_beside_extreme_settings_have_the_tokens_of_their_single_runs(
    worker: WorkerProcess, tiny_core: Path
) -> None:
    """E10: so have those with the settings."""
    plain = [
        Submit(((100 + at, at),), PROMPT[: 5 + 7 * at], 30, stops=EOS, settings=each) for at, each in enumerate(SOME)
    ]
    extreme = [
        Submit(((row, row),), PROMPT, 20, stops=EOS, settings=Settings(**{"temperature": 1.0, **each}))
        for row, each in enumerate(EXTREMES)
    ]
    tokens, launched = run(worker, extreme[0], plain[0], extreme[1], plain[1], *extreme[2:])
    for order in (*plain, *extreme):
        assert {row: tokens[row] for row, _ in order.rows} == single_runs(tiny_core, order)
    assert max(each.real for each in launched if each.entry == "decode") == 4


# ---- the end ---------------------------------------------------------------------------------------------------------
def test_stop_ends_a_worker_with_zero_also_with_rows_under_way(worker: WorkerProcess) -> None:
    worker.send(Submit(((1, 0),), PROMPT, 40), Stop())
    assert worker.end() == 0


@pytest.mark.parametrize("when", ["before start", "while loading", "idle", "with rows under way"])
def test_a_worker_ends_when_its_front_has_gone(tiny_core: Path, when: str) -> None:
    with running() as worker:
        if when == "while loading":
            worker.send(Start(PROTOCOL, str(tiny_core)))
            worker.until(lambda message: isinstance(message, Hello))
        elif when != "before start":
            worker.start(tiny_core)
        if when == "with rows under way":
            worker.send(Submit(((1, 0),), PROMPT, 40))
        worker.front.close()
        assert worker.end() == 0


def test_a_worker_lets_the_terminals_interrupt_pass(worker: WorkerProcess) -> None:
    os.kill(worker.process.pid, signal.SIGINT)
    tokens, _ = run(worker, Submit(((1, 0),), PROMPT, 5))
    assert len(tokens[1]) == 5


def test_a_worker_ends_when_it_is_asked_to_terminate(worker: WorkerProcess) -> None:
    os.kill(worker.process.pid, signal.SIGTERM)
    assert worker.end() == -signal.SIGTERM


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Start(PROTOCOL + 1, "core"), "ProtocolError"),
        (Start(PROTOCOL, "/nowhere/core"), "MissingFileError"),
        (Stop(), "ProtocolError"),
    ],
)
def test_an_error_is_said_and_ends_the_worker_with_one(message: Start | Stop, error: str) -> None:
    with running() as worker:
        worker.send(message)
        failed = worker.until(lambda each: isinstance(each, Failed))[-1]
        assert isinstance(failed, Failed)
        assert (failed.error, bool(failed.found and failed.required and failed.hint)) == (error, True)
        assert worker.end() == 1


def test_a_core_that_is_not_trusted_here_is_refused(tiny_core: Path, tmp_path: Path) -> None:
    with running(environment={"HELIOGRAPH_HOME": str(tmp_path)}) as worker:
        failed = worker.start(tiny_core)[-1]
        assert isinstance(failed, Failed)
        assert failed.error == "UntrustedError"
        assert worker.end() == 1


def test_bytes_that_are_no_frame_end_the_worker_with_an_error(worker: WorkerProcess) -> None:
    worker.front.sendall(b"\0\0\0\0")
    failed = worker.until(lambda each: isinstance(each, Failed))[-1]
    assert isinstance(failed, Failed)
    assert (failed.error, worker.end()) == ("ProtocolError", 1)
