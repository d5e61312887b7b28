"""A language model's core gives the same tokens on both devices: the fake CUDA driver runs the same kernels."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from as_cuda import as_cuda
from fake_cuda.control import FakeCuda
from heliograph.core.policy import Policy
from heliograph.core.verify import VerifiedCore, verify
from heliograph.runtime.generate import generate
from heliograph.runtime.load import load
from heliograph.runtime.program import Program
from heliograph.runtime.sampling import Sampling
from heliograph.runtime.steps import Steps

PROMPT = [3, 14, 15, 9, 2, 6, 5, 3, 5]


@pytest.fixture(scope="module")
def llama(tiny_llama: tuple[Path, torch.nn.Module]) -> Iterator[VerifiedCore]:
    with verify(tiny_llama[0], Policy.local()) as verified:
        yield verified


Work = Callable[[Program], Any]
Both = Callable[[Work], tuple[Any, Any]]


@pytest.fixture
def both(llama: VerifiedCore, tmp_path: Path, fake_cuda: FakeCuda) -> Iterator[Both]:
    """Does the same work on the host and, once that is closed (they have one slot), on the CUDA device."""

    def do(work: Work) -> tuple[Any, Any]:
        with load(llama, workers=1) as program:
            expected = work(program)
        parts = as_cuda(llama)
        with (
            verify(parts.write(tmp_path), Policy.only(parts.key.public_bytes)) as verified,
            load(verified) as program,
        ):
            return expected, work(program)

    yield do
    gc.collect()


def test_tokens_are_those_of_the_host(both: Both) -> None:
    """R22, B9"""

    def answers(program: Program) -> list[list[int]]:
        settings = (Sampling(), Sampling(temperature=0.8, top_k=20, top_p=0.9, seed=7))
        return [list(generate(program, PROMPT, 24, sampling)) for sampling in settings]

    host, cuda = both(answers)
    assert cuda == host
    assert all(len(answer) > 4 for answer in host)


def test_rows_that_come_and_go_are_those_of_the_host(both: Both) -> None:
    """R25"""

    def work(program: Program) -> tuple[list[list[int]], bytes]:
        with Steps(program) as steps:
            seats = [steps.seat(slot, [2 * slot + 1, 2 * slot + 2], Sampling(seed=slot)) for slot in range(3)]
            chunk = steps.sizes["prefill"][-1]
            tokens = [steps.prefill(chunk, seat, PROMPT[: 4 + row], 0) for row, seat in enumerate(seats)]
            said, places = [list(tokens)], [4, 5, 6]
            for live in ((0, 1, 2), (2, 0), (1,), (0, 1, 2)):
                size = min(size for size in steps.sizes["decode"] if size >= len(live))
                chosen = [seats[row] for row in live], [tokens[row] for row in live], [places[row] for row in live]
                found = steps.decode(size, *chosen)
                for row, token in zip(live, found, strict=True):
                    tokens[row], places[row] = token, places[row] + 1
                said.append(found)
            steps.remember(1, PROMPT[:3])
        return said, program.read_state("history")

    host, cuda = both(work)
    assert cuda == host


def test_a_step_is_one_copy_there_and_one_back(both: Both, fake_cuda: FakeCuda) -> None:
    def copies(program: Program) -> dict[str, int]:
        with Steps(program) as steps:
            seat = steps.seat(0, [1, 2], Sampling())
            token = steps.prefill(steps.sizes["prefill"][0], seat, PROMPT[:4], 0)
            steps.decode(1, [seat], [token], [4])
            before = fake_cuda.all_calls()
            steps.decode(1, [seat], [token], [5])
            after = fake_cuda.all_calls()
        return {name: after.get(name, 0) - before.get(name, 0) for name in ("cuMemcpyHtoD", "cuMemcpyDtoH")}

    _, cuda = both(copies)
    assert cuda == {"cuMemcpyHtoD": 1, "cuMemcpyDtoH": 1}
