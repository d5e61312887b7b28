"""The sampler's distribution: χ² on 32 tokens against the exact probabilities, and a sampler that must fail it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from heliograph.ops.sample import BIASES
from heliograph.ops.sample.reference import Settings

from .compiled import KERNEL_SOURCES, compiled
from .harness import LEVELS, call
from .packed import generator
from .sampling import Batch, chi_squared_p

DRAWS = 100_000
VOCABULARY = 32
CELLS = {
    "plain": Settings(),
    "cold": Settings(temperature=0.6),
    "hot": Settings(temperature=1.7),
    "top-k": Settings(top_k=5),
    "top-p": Settings(top_p=0.8),
    "min-p": Settings(min_p=0.15),
    "all": Settings(temperature=1.2, top_k=12, top_p=0.9, min_p=0.05),
    "penalised": Settings(presence=0.4, frequency=0.2, repetition=1.3),
}


def drawn(
    settings: Settings, vary: str, level: str, seed: int, modules: Mapping[str, Path] | None = None
) -> tuple[Tensor, Tensor]:
    """Counts of DRAWS draws and the exact probabilities. Every row has the same logits, bias, mask and history."""
    source = generator(seed)
    logits = (torch.randn(1, VOCABULARY, generator=source) * 1.5).expand(DRAWS, -1)
    numbers = torch.arange(DRAWS)
    bias_ids = torch.full((DRAWS, BIASES), -1, dtype=torch.int32)
    bias_values = torch.zeros(DRAWS, BIASES)
    bias_ids[:, 0], bias_values[:, 0] = 3, 0.7
    fields = {
        "slots": torch.zeros(DRAWS, dtype=torch.int32),
        "lengths": torch.full((DRAWS,), 8, dtype=torch.int32),
        "prompts": torch.full((DRAWS,), 3, dtype=torch.int32),
        "history": torch.randint(0, VOCABULARY, (4, 8), generator=source, dtype=torch.int32),
        "bias_ids": bias_ids,
        "bias_values": bias_values,
        "masks": torch.tensor([[0x7FFFFFDF]], dtype=torch.int32),
        "mask_index": torch.zeros(DRAWS, dtype=torch.int32),
        "seed": numbers * 7919 + seed if vary == "seed" else torch.full((DRAWS,), seed),
        "sample_position": numbers.int() if vary == "position" else torch.zeros(DRAWS, dtype=torch.int32),
    }
    batch = Batch(logits, settings, fields=fields)
    ids = call("sample", *batch.args(), level=level, modules=modules).outs[0]
    return torch.bincount(ids, minlength=VOCABULARY), batch.probabilities(0)


@pytest.mark.parametrize("vary", ["seed", "position"])
@pytest.mark.parametrize("cell", CELLS)
def test_draws_have_the_exact_distribution(level: str, cell: str, vary: str, seed: int) -> None:
    counts, probabilities = drawn(CELLS[cell], vary, level, seed)
    assert chi_squared_p(counts, probabilities) > 1e-4


@pytest.mark.parametrize(("error", "kept"), [("--cut.equal;", -1), ("", 0)])
def test_top_p_off_by_one_token_fails_the_distribution_test(error: str, kept: int, tmp_path: Path, seed: int) -> None:
    """The sampler built from its own sources, once with the last token of top-p left out and once as it is."""
    header = (KERNEL_SOURCES / "select.h").read_text()
    end = "  return cut;\n}\n\n// Tokens in order of id"
    assert header.count(end) == 1
    (tmp_path / "select.h").write_text(header.replace(end, f"  {error}{end}"))
    source = tmp_path / "sample.cpp"
    source.write_text((KERNEL_SOURCES / "sample.cpp").read_text())
    modules = {"sample": compiled(source, LEVELS[0], tmp_path)}
    counts, probabilities = drawn(CELLS["top-p"], "seed", LEVELS[0], seed, modules)
    assert (counts > 0).sum() == (probabilities > 0).sum() + kept
    assert (chi_squared_p(counts, probabilities) > 1e-4) == (kept == 0)


def test_chi_squared_sees_one_impossible_draw_and_a_shift_of_two_hundredths(seed: int) -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.2, 0.0])
    good = torch.tensor([50_100, 29_950, 19_950, 0])
    assert chi_squared_p(good, probabilities) > 1e-4
    assert chi_squared_p(good + torch.tensor([-1, 0, 0, 1]), probabilities) == 0.0
    assert chi_squared_p(good + torch.tensor([-1000, 1000, 0, 0]), probabilities) < 1e-4
