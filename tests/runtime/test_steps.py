"""Buckets filled and run for rows that come and go: every field as it must be, and a row's logits its own."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from heliograph.core.policy import Policy
from heliograph.core.sign import SigningKey
from heliograph.core.verify import verify
from heliograph.errors import UsageError
from heliograph.runtime.load import load
from heliograph.runtime.program import Program
from heliograph.runtime.sampling import Sampling
from heliograph.runtime.steps import Seat, Steps

PROMPT = list(range(100, 180))
RANDOM = Sampling(temperature=1.0, top_k=40, top_p=0.9, presence=0.5, frequency=0.1, repetition=1.1, seed=-7)
CODES = {"i32": "i", "i64": "q", "f32": "f"}


@pytest.fixture
def program(tiny_llama: tuple[Path, torch.nn.Module]) -> Iterator[Program]:
    with verify(tiny_llama[0], Policy.local()) as verified, load(verified, units=30, ready=()) as program:
        yield program


@pytest.fixture
def steps(program: Program) -> Iterator[Steps]:
    with Steps(program) as steps:
        yield steps


def seat(steps: Steps, slot: int, sampling: Sampling = RANDOM) -> Seat:
    """Six blocks, so the whole context."""
    return steps.seat(slot, range(1 + 6 * slot, 7 + 6 * slot), sampling, prompt=10 + slot)


def logits(steps: Steps, entry: str, size: int, row: int = 0) -> bytes:
    shape = {"rows" if entry == "decode" else "tokens": size}
    width = 4 * steps.text.vocabulary
    return steps.program.read(entry, shape, "logits")[row * width : (row + 1) * width]


def store(steps: Steps, chosen: Seat, ids: Sequence[int]) -> int:
    """A prompt in the chunks that serving would take."""
    token = 0
    for start in range(0, len(ids), 64):
        chunk = ids[start : start + 64]
        token = steps.prefill(16 if len(chunk) <= 16 else 64, chosen, chunk, start)
    return token


def test_sizes_of_the_core_are_known(steps: Steps) -> None:
    assert steps.sizes == {"decode": (1, 2, 4), "prefill": (16, 64)}
    assert (steps.units, steps.biases, steps.blocks_of_sequence) == (30, 32, 6)


# ---- row independence ------------------------------------------------------------------------------------------------
def test_a_row_has_the_same_logits_at_every_row_of_every_bucket(steps: Steps) -> None:
    seats = [seat(steps, slot, sampling) for slot, sampling in enumerate([RANDOM, Sampling(), RANDOM, RANDOM])]
    tokens = [store(steps, each, PROMPT[slot : 70 + 3 * slot]) for slot, each in enumerate(seats)]
    lengths = [70 + 2 * slot for slot in range(4)]
    for step in range(3):
        positions = [length + step for length in lengths]
        found = set()
        for size in steps.sizes["decode"]:
            for real in range(1, size + 1):
                for row in range(real):
                    order = [*range(1, row + 1), 0, *range(row + 1, real)]  # row 0 stands at `row`, others around it
                    after = steps.decode(
                        size, [seats[r] for r in order], [tokens[r] for r in order], [positions[r] for r in order]
                    )
                    found.add((after[row], logits(steps, "decode", size, row)))
        assert len(found) == 1
        tokens = steps.decode(4, seats, tokens, positions)


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 33, 80])
def test_a_prompt_has_the_same_logits_in_every_chunking(steps: Steps, count: int) -> None:
    ids = PROMPT[:count]
    splits = [[0, cut, count] for cut in range(1, count)] + [[*range(0, count, width), count] for width in (1, 3, 16)]
    splits.append([0, count] if count <= 64 else [0, 64, count])
    found = set()
    for split in splits:
        bounds = sorted(set(split))
        if max(end - start for start, end in pairwise(bounds)) > 64:
            continue
        for roomy in (False, True):
            chosen, token, size = seat(steps, len(found) % 4), 0, 0
            for start, end in pairwise(bounds):
                size = 64 if roomy or end - start > 16 else 16
                token = steps.prefill(size, chosen, ids[start:end], start)
            last = logits(steps, "prefill", size)
            (after,) = steps.decode(1, [chosen], [token], [count])
            found.add((token, last, after, logits(steps, "decode", 1)))
    assert len(found) == 1


def test_blocks_that_are_shared_and_remembered_give_what_a_run_of_its_own_gives(steps: Steps) -> None:
    """Penalties see the tokens that another row stored."""
    ids = PROMPT[:40]
    store(steps, seat(steps, 0), ids)
    second = steps.seat(1, [1, 2, 10, 11], RANDOM)
    steps.remember(1, ids[:32])
    token = steps.prefill(16, second, ids[32:], 32)
    found = [token, *steps.decode(2, [second], [token], [40])], logits(steps, "decode", 2)
    third = seat(steps, 2)
    token = store(steps, third, ids)
    assert ([token, *steps.decode(2, [third], [token], [40])], logits(steps, "decode", 2)) == found


# ---- what is written -------------------------------------------------------------------------------------------------
def column(steps: Steps, entry: str, size: int, field: str) -> list[float]:
    shape = {"rows" if entry == "decode" else "tokens": size}
    code = CODES[steps.program.buffer(entry, shape, field).dtype]
    return array(code, steps.program.read(entry, shape, field)).tolist()


def test_every_field_is_as_it_must_be_whoever_sat_there_before(steps: Steps) -> None:
    draw = random.Random(4)

    def sampling() -> Sampling:
        return Sampling(
            temperature=draw.choice([0.0, 0.5]), top_k=draw.randrange(9), top_p=draw.choice([0.5, 1.0]),
            min_p=draw.choice([0.0, 0.25]), presence=draw.choice([0.0, 0.5]), frequency=draw.choice([0.0, 0.5]),
            repetition=draw.choice([1.0, 1.5]), logprobs=draw.randrange(4), seed=draw.randrange(2**64),
            bias={draw.randrange(264): draw.choice([-1.0, 2.0]) for _ in range(draw.randrange(4))},
        )  # fmt: skip

    for _ in range(60):
        seats = [seat(steps, slot, sampling()) for slot in draw.sample(range(4), draw.randint(1, 4))]
        for _ in range(draw.randint(1, 4)):
            now = draw.sample(seats, draw.randint(1, len(seats)))
            size = draw.choice([each for each in (1, 2, 4) if each >= len(now)])
            ids, positions = [draw.randrange(264) for _ in now], [draw.randrange(96) for _ in now]
            steps.decode(size, now, ids, positions)
            ends = [position + 1 for position in positions]
            check_rows(steps, "decode", size, now, ends)
            real, padding = len(now), size - len(now)
            assert column(steps, "decode", size, "ids")[:real] == ids
            assert column(steps, "decode", size, "positions") == positions + [-1] * padding
            assert column(steps, "decode", size, "slots")[real:] == [-1] * padding
            assert column(steps, "decode", size, "tables")[real * 6 :] == [0] * 6 * padding
        count, start = draw.randint(1, 16), draw.randrange(80)
        size = draw.choice([16, 64])
        steps.prefill(size, seats[0], PROMPT[:count], start)
        check_rows(steps, "prefill", size, seats[:1], [start + count])
        assert column(steps, "prefill", size, "ids")[:count] == PROMPT[:count]
        assert column(steps, "prefill", size, "positions") == [*range(start, start + count), *[-1] * (size - count)]
        assert column(steps, "prefill", size, "last_row") == [count - 1]


def check_rows(steps: Steps, entry: str, size: int, seats: Sequence[Seat], ends: Sequence[int]) -> None:
    real = len(seats)

    def rows(field: str, width: int = 1) -> list[float]:
        return column(steps, entry, size, field)[: real * width]

    assert rows("slots") == [each.slot for each in seats]
    assert rows("prompts") == [10 + each.slot for each in seats]
    assert rows("tables", 6) == [block for each in seats for block in range(1 + 6 * each.slot, 7 + 6 * each.slot)]
    assert rows("lengths") == rows("sample_position") == list(ends)
    assert rows("mask_index") == [-1] * real
    assert rows("logprob_count") == [each.sampling.logprobs for each in seats]
    assert [int(seed) % 2**64 for seed in rows("seed")] == [each.sampling.seed for each in seats]
    for name in ("temperature", "top_k", "top_p", "min_p", "presence", "frequency"):
        assert rows(name) == [getattr(each.sampling, name) for each in seats]
    assert rows("repetition") == [each.sampling.repetition for each in seats]
    for at, each in enumerate(seats):
        rest = 32 - len(each.sampling.bias)
        assert rows("bias_ids", 32)[at * 32 : at * 32 + 32] == [*each.sampling.bias, *[-1] * rest]
        assert rows("bias_values", 32)[at * 32 : at * 32 + 32] == [*each.sampling.bias.values(), *[0.0] * rest]


@pytest.mark.parametrize(("blocks", "biases"), [(7, 0), (6, 33)])
def test_a_seat_with_more_than_the_core_has_places_for_is_refused(steps: Steps, blocks: int, biases: int) -> None:
    with pytest.raises(UsageError):
        steps.seat(0, range(1, blocks + 1), Sampling(bias=dict.fromkeys(range(biases), 1.0)))
    steps.seat(0, range(1, 7), Sampling(bias=dict.fromkeys(range(32), 1.0)))


def test_a_program_closes_when_its_steps_are_closed(tiny_llama: tuple[Path, torch.nn.Module]) -> None:
    with verify(tiny_llama[0], Policy.local()) as verified, load(verified, units=9, ready=()) as program:
        steps = Steps(program)
        steps.prefill(16, steps.seat(0, [1], Sampling()), [1, 2], 0)
        with pytest.raises(UsageError):
            program.close()
        steps.close()
        steps.close()


def test_buckets_are_built_when_asked_for(tiny_llama: tuple[Path, torch.nn.Module]) -> None:
    with verify(tiny_llama[0], Policy.local()) as verified, load(verified, units=9, ready="first") as program:
        steps = Steps(program)
        assert [steps.is_ready("decode", size) for size in (1, 2, 4)] == [True, False, True]
        steps.prepare("decode", 2)
        assert steps.is_ready("decode", 2)
        steps.close()


def test_a_core_of_another_kind_is_refused(study_core: Path, key: SigningKey) -> None:
    policy = Policy.only(key.public_bytes)
    with verify(study_core, policy) as verified, load(verified) as program, pytest.raises(UsageError):
        Steps(program)
