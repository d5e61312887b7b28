"""The engine on a real core, in one process: what is built, shared or freed around a row changes none of its tokens."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from heliograph.core.policy import Policy
from heliograph.core.verify import verify
from heliograph.runtime.generate import generate
from heliograph.runtime.load import load
from heliograph.runtime.program import Program
from heliograph.runtime.steps import Steps
from heliograph.serve.frames import Cancel, Launched, Settings, Submit
from heliograph.serve.limits import Limits
from heliograph.serve.worker.engine import Engine
from heliograph.serve.worker.row import Prompt, Row

EOS = (2,)
SOME = (Settings(), Settings(temperature=1.2, top_k=40, presence=0.5, frequency=0.2, repetition=1.1))


@pytest.fixture
def program(tiny_core: Path) -> Iterator[Program]:
    with verify(tiny_core, Policy.local()) as verified, load(verified, ready="first", units=20, workers=1) as program:
        yield program


def single_run(program: Program, order: Submit, seed: int) -> list[int]:
    row = Row(0, seed, Prompt.of(order, 96, 16))
    return list(generate(program, order.prompt, order.limit, row.sampling()))


def collect(launched: list[Launched]) -> dict[int, list[int]]:
    tokens: dict[int, list[int]] = defaultdict(list)
    for gain in (gain for each in launched for gain in each.gains):
        tokens[gain.row] += gain.tokens
    return tokens


def run(engine: Engine) -> list[Launched]:
    launched = []
    while engine.busy:
        launched += engine.round()
    return launched


def test_buckets_built_under_load_change_no_token(program: Program) -> None:
    orders = [
        Submit(((2 * at, at), (2 * at + 1, -at)), tuple(range(100, 120 + 7 * at)), 20, stops=EOS, settings=SOME[at % 2])
        for at in range(4)
    ]
    with Steps(program) as steps:
        engine = Engine(steps, time.perf_counter_ns, Limits(rounds_between_builds=5))
        for order in orders:
            assert engine.submit(order) == []
        launched = run(engine)
        assert engine.unbuilt == 0
        assert [launched[0].prepared, launched[-1].prepared, launched[-1].load.free_blocks] == [4, 5, 19]
    assert collect(launched) == {
        row: single_run(program, order, seed) for order in orders for row, seed in order.rows
    }  # fmt: skip


def test_rows_that_come_and_go_at_random_change_nobody_elses_tokens(program: Program) -> None:
    """Memory is short, so blocks and slots go from row to row all the time."""
    draw = random.Random(8)
    orders, launched, gone = [], [], set()
    with Steps(program) as steps:
        engine = Engine(steps, time.perf_counter_ns, Limits(rounds_between_builds=50))
        for number in range(40):
            copies = draw.choice([1, 1, 1, 2, 3])
            order = Submit(
                tuple((10 * number + copy, draw.randrange(-99, 99)) for copy in range(copies)),
                tuple(draw.randrange(3, 264) for _ in range(draw.randint(1, 70))), draw.randint(1, 20), stops=EOS,
                least=draw.choice([0, 3]), settings=draw.choice(SOME),
            )  # fmt: skip
            orders.append(order)
            assert engine.submit(order) == []
            for _ in range(draw.randrange(6)):
                launched += engine.round()
            chosen = draw.choice(orders).rows[0][0]
            if draw.random() < 0.3:
                gone |= {each.row for each in engine.cancel(Cancel((chosen,)))}
        launched += run(engine)
        assert launched[-1].load.free_blocks == 19
    tokens = collect(launched)
    assert gone
    for order in orders:
        if not order.least:  # generate has no such thing
            for row, seed in order.rows:
                wanted = single_run(program, order, seed)
                assert tokens[row] == (wanted[: len(tokens[row])] if row in gone else wanted)
