"""Generating from a tiny Llama's core: the same tokens alone and in company, and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from heliograph.core.policy import Policy
from heliograph.core.verify import verify
from heliograph.errors import UsageError
from heliograph.runtime.generate import Generator, Sampling, generate
from heliograph.runtime.load import load
from heliograph.runtime.program import Program
from tiny_models import capture_small, random_model, write_hf

PROMPTS = [[10, 20, 30], [40, 50, 60, 70, 80, 90], list(range(100, 180)), [9]]
RANDOM = Sampling(
    temperature=1.5, top_k=50, top_p=0.95, min_p=0.001, presence=0.2, frequency=0.1, repetition=1.1, seed=3
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.nn.Module]:
    folder = tmp_path_factory.mktemp("tiny")
    reference = write_hf(folder / "model", random_model("llama"))
    return capture_small(folder / "model", folder / "cores"), reference


@pytest.fixture(scope="module")
def program(made: tuple[Path, torch.nn.Module]) -> Iterator[Program]:
    with verify(made[0], Policy.local()) as verified, load(verified, units=30) as program:
        yield program


def together(program: Program, prompts: list[list[int]], sampling: Sampling, steps: int) -> list[list[int]]:
    """Each prompt's tokens, all rows decoded in one bucket."""
    generator = Generator(program)
    rows = [generator.add(prompt, sampling) for prompt in prompts]
    for row in rows:
        generator.prefill(row)
    for _ in range(steps - 1):
        generator.decode(rows)
    return [row.ids[len(prompt) :] for row, prompt in zip(rows, prompts, strict=True)]


def test_greedy_tokens_are_those_of_transformers(program: Program, made: tuple[Path, torch.nn.Module]) -> None:
    wanted = list(PROMPTS[1])
    with torch.no_grad():
        for _ in range(12):
            wanted.append(int(made[1](torch.tensor([wanted])).logits[0, -1].argmax()))
    program.reset()
    ends = program.core.text.eos
    assert not set(ends) & set(wanted[len(PROMPTS[1]) :])
    assert list(generate(program, PROMPTS[1], 12)) == wanted[len(PROMPTS[1]) :]


@pytest.mark.parametrize("sampling", [Sampling(), RANDOM], ids=["greedy", "random"])
def test_row_gives_the_same_tokens_alone_and_in_a_batch(program: Program, sampling: Sampling) -> None:
    alone = [together(program, [prompt], sampling, 10)[0] for prompt in PROMPTS]
    assert together(program, PROMPTS, sampling, 10) == alone
    assert together(program, PROMPTS[::-1], sampling, 10) == alone[::-1]


def test_seed_decides_what_is_drawn(program: Program) -> None:
    def drawn(seed: int) -> list[int]:
        return list(generate(program, PROMPTS[0], 10, Sampling(temperature=2.0, seed=seed)))

    assert drawn(1) == drawn(1)
    assert len({tuple(drawn(seed)) for seed in (1, 2, 3, -1, 2**63, 2**64 - 5)}) >= 5


def test_bias_decides_among_tokens(program: Program) -> None:
    assert list(generate(program, PROMPTS[0], 4, Sampling(bias={200: 1000.0}))) == [200] * 4


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


def test_more_rows_than_the_concurrency_are_refused(program: Program) -> None:
    generator = Generator(program)
    rows = [generator.add([5], Sampling()) for _ in range(4)]
    with pytest.raises(UsageError):
        generator.add([5], Sampling())
    generator.remove(rows[0])
    generator.add([5], Sampling())


def test_rows_that_the_memory_does_not_hold_are_refused(program: Program) -> None:
    generator = Generator(program)  # 29 blocks of 16 tokens, a row takes 6 at most
    rows = [generator.add([5] * 96, Sampling()) for _ in range(4)]
    for row in rows:
        generator.prefill(row)
    generator.remove(rows[0])
    taken = [generator._blocks.pop() for _ in range(len(generator._blocks) - 5)]
    row = generator.add([5] * 96, Sampling())
    with pytest.raises(UsageError):
        generator.prefill(row)
    generator._blocks += taken
    generator.prefill(row)


def test_more_biases_than_the_core_takes_are_refused(program: Program) -> None:
    with pytest.raises(UsageError):
        list(generate(program, [5], 1, Sampling(bias=dict.fromkeys(range(33), 1.0))))
    list(generate(program, [5], 1, Sampling(bias=dict.fromkeys(range(32), 1.0))))


def test_blocks_of_one_row_are_never_those_of_another(program: Program) -> None:
    generator = Generator(program)
    rows = [generator.add(prompt, Sampling()) for prompt in PROMPTS]
    for row in rows:
        generator.prefill(row)
    blocks = [block for row in rows for block in row.blocks]
    assert len(set(blocks)) == len(blocks)
    assert 0 not in blocks
