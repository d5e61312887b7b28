"""The gate itself: each of its bounds is the one that fails, and just within it passes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from logit_gate import (
    CHANGES,
    CUDA_MARGIN,
    CUDA_MEAN,
    EXACT_MARGIN,
    EXACT_MEAN,
    EXACT_P99,
    Difference,
    compare,
    percentile,
)
from torch import Tensor


def logits(prompts: int = 2, positions: int = 10, vocabulary: int = 1000) -> list[Tensor]:
    """Reference logits whose best token leads by 1."""
    made = torch.randn(prompts, positions, vocabulary, generator=torch.Generator().manual_seed(3)).clamp(-2, 2)
    made[:, :, 7] = 3.0
    return list(made)


def shifted(reference: list[Tensor], by: float, share: float = 1.0) -> list[tuple[Tensor, Tensor]]:
    ours = [each.clone() for each in reference]
    for each in ours:
        each[:, : int(share * each.shape[1])] += by
    return list(zip(reference, ours, strict=True))


def test_equal_logits_have_no_difference() -> None:
    found = compare(shifted(logits(), 0.0))
    assert found == Difference(0.0, 0.0, 20, 0, 0.0, 0.0, 0.0)
    assert found.exact
    assert found.quantised


@pytest.mark.parametrize(("scale", "passes"), [(0.98, True), (1.02, False)])
def test_mean_is_bounded(scale: float, passes: bool) -> None:
    found = compare(shifted(logits(), EXACT_MEAN * scale))
    assert found.mean == pytest.approx(EXACT_MEAN * scale, rel=1e-3)
    assert found.exact == passes


@pytest.mark.parametrize(("scale", "passes"), [(0.98, True), (1.02, False)])
def test_99th_percentile_is_bounded(scale: float, passes: bool) -> None:
    found = compare(shifted(logits(), EXACT_P99 * scale, share=0.02))
    assert found.mean < EXACT_MEAN
    assert found.exact == passes


def test_99th_percentile_is_taken_within_each_prompt() -> None:
    reference = logits()
    pairs = shifted(reference[:1], 0.03) + shifted(reference[1:], 0.0)
    assert compare(pairs).p99 == pytest.approx(0.015, rel=1e-3)


@pytest.mark.parametrize(("margin", "passes"), [(EXACT_MARGIN * 0.98, True), (EXACT_MARGIN * 1.02, False)])
def test_changed_choice_is_bounded_by_the_margin_that_it_overturned(margin: float, passes: bool) -> None:
    reference = logits()
    reference[0][4, 8] = 3.0 - margin
    ours = [each.clone() for each in reference]
    ours[0][4, 8] = 3.01
    found = compare(zip(reference, ours, strict=True))
    assert found.changed == 1
    assert found.overturned == pytest.approx(margin, rel=1e-3)
    assert found.regret_p99 == pytest.approx(margin, rel=1e-3)
    assert found.exact == passes


def test_a_choice_changed_at_the_very_margin_fails_on_cuda() -> None:
    """Only below it may one change."""
    reference = logits()
    reference[0][4, 8] = 3.0 - CUDA_MARGIN
    ours = [each.clone() for each in reference]
    ours[0][4, 8] = 3.01
    found = compare(zip(reference, ours, strict=True))
    assert found.overturned == CUDA_MARGIN
    assert not found.cuda


@pytest.mark.parametrize(("scale", "passes"), [(0.98, True), (1.02, False)])
def test_mean_and_margin_are_bounded_on_cuda(scale: float, passes: bool) -> None:
    assert compare(shifted(logits(), CUDA_MEAN * scale)).cuda == passes
    reference = logits()
    reference[0][4, 8] = 3.0 - CUDA_MARGIN * scale
    ours = [each.clone() for each in reference]
    ours[0][4, 8] = 3.01
    assert compare(zip(reference, ours, strict=True)).cuda == passes


@pytest.mark.parametrize(("changed", "passes"), [(4, True), (5, False)])
def test_share_of_changes_is_bounded_in_the_quantised_profile(changed: int, passes: bool) -> None:
    reference = logits(prompts=1, positions=100)
    ours = [each.clone() for each in reference]
    for position in range(changed):
        reference[0][position, 8] = 2.9
        ours[0][position, 8] = 3.1
    found = compare(zip(reference, ours, strict=True))
    assert found.changed == changed
    assert (found.changed <= CHANGES * found.positions) == passes
    assert found.quantised == passes


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_value_that_is_not_finite_fails(value: float) -> None:
    reference = logits()
    ours = [each.clone() for each in reference]
    ours[1][0, 0] = value
    with pytest.raises(ValueError, match="finite"):
        compare(zip(reference, ours, strict=True))


def test_percentile_is_the_smallest_value_that_the_share_does_not_exceed() -> None:
    assert percentile(np.arange(1, 101), 0.99) == 99
    assert percentile(np.arange(1, 201), 0.99) == 198
