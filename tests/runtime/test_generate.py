"""Generating from a tiny Llama's core, one row at a time, and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from heliograph.core.policy import Policy
from heliograph.core.verify import verify
from heliograph.errors import UsageError
from heliograph.runtime.generate import generate
from heliograph.runtime.load import load
from heliograph.runtime.program import Program
from heliograph.runtime.sampling import Sampling

PROMPTS = [[10, 20, 30], [40, 50, 60, 70, 80, 90], list(range(100, 180)), [9]]
RANDOM = Sampling(
    temperature=1.5, top_k=50, top_p=0.95, min_p=0.001, presence=0.2, frequency=0.1, repetition=1.1, seed=3
)  # fmt: skip


@pytest.fixture
def program(tiny_llama: tuple[Path, torch.nn.Module]) -> Iterator[Program]:
    with verify(tiny_llama[0], Policy.local()) as verified, load(verified, units=9, ready=()) as program:
        yield program


def test_greedy_tokens_are_those_of_transformers(program: Program, tiny_llama: tuple[Path, torch.nn.Module]) -> None:
    for prompt in PROMPTS:
        wanted = list(prompt)
        with torch.no_grad():
            for _ in range(12):
                wanted.append(int(tiny_llama[1](torch.tensor([wanted])).logits[0, -1].argmax()))
        assert not set(program.core.text.eos) & set(wanted[len(prompt) :])
        assert list(generate(program, prompt, 12)) == wanted[len(prompt) :]


@pytest.mark.parametrize("sampling", [Sampling(), RANDOM], ids=["greedy", "random"])
def test_what_came_before_does_not_matter(program: Program, sampling: Sampling) -> None:
    first = [list(generate(program, prompt, 10, sampling)) for prompt in PROMPTS]
    assert [list(generate(program, prompt, 10, sampling)) for prompt in PROMPTS[::-1]] == first[::-1]
    program.reset()
    assert list(generate(program, PROMPTS[2], 10, sampling)) == first[2]


def test_seed_decides_what_is_drawn(program: Program) -> None:
    def drawn(seed: int) -> list[int]:
        return list(generate(program, PROMPTS[0], 10, Sampling(temperature=2.0, seed=seed)))

    assert drawn(1) == drawn(1)
    assert len({tuple(drawn(seed)) for seed in (1, 2, 3, -1, 2**63, 2**64 - 5)}) >= 5


def test_bias_decides_among_tokens(program: Program) -> None:
    assert list(generate(program, PROMPTS[0], 4, Sampling(bias={200: 1000.0}))) == [200] * 4
    held = {token: float("-inf") for token in generate(program, PROMPTS[0], 4)}
    assert not set(generate(program, PROMPTS[0], 4, Sampling(bias=held))) & set(held)


def test_end_of_text_ends_the_tokens_and_is_not_given_out(program: Program) -> None:
    (end,) = program.core.text.eos
    assert list(generate(program, PROMPTS[0], 4, Sampling(bias={end: 1000.0}))) == []


def test_tokens_end_with_the_context(program: Program) -> None:
    bias = Sampling(bias={200: 1000.0})
    prompt = [5] * (program.core.text.context - 3)
    assert list(generate(program, prompt, 50, bias)) == [200] * 3
    assert list(generate(program, [*prompt, 5, 5, 5], 50, bias)) == []


@pytest.mark.parametrize("ids", [[], [264], [-1], [2**31], [5] * 97], ids=["none", "high", "negative", "huge", "long"])
def test_prompt_that_the_core_cannot_take_is_refused(program: Program, ids: list[int]) -> None:
    with pytest.raises(UsageError):
        list(generate(program, ids, 1))
    list(generate(program, [263] * 96, 1))


def test_tokens_that_the_memory_does_not_hold_are_refused(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Program, "units", 3)  # two blocks of 16, fewer than this small core lets itself be loaded with
    with pytest.raises(UsageError):
        list(generate(program, [5] * 20, 13))
    assert len(list(generate(program, [5] * 20, 12, Sampling(bias={200: 1000.0})))) == 12


def test_more_biases_than_the_core_takes_are_refused(program: Program) -> None:
    with pytest.raises(UsageError):
        list(generate(program, [5], 1, Sampling(bias=dict.fromkeys(range(33), 1.0))))
    list(generate(program, [5], 1, Sampling(bias=dict.fromkeys(range(32), 1.0))))


def test_a_program_can_be_closed_when_the_tokens_were_not_taken_to_their_end(
    tiny_llama: tuple[Path, torch.nn.Module],
) -> None:
    with verify(tiny_llama[0], Policy.local()) as verified, load(verified, units=9, ready=()) as program:
        tokens = generate(program, PROMPTS[0], 10)
        next(tokens)
        with pytest.raises(UsageError):
            program.close()
        tokens.close()
