"""Promotion and rounding against PyTorch's own rules, for all pairs of types."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heliograph.ops.aten.element import promote, result_type, rounded
from heliograph.ops.launch import View

from ..harness import examples
from ..memory import DTYPES, TORCH

TYPES = sorted(DTYPES.values())


def test_all_pairs_of_types_promote_as_in_pytorch() -> None:
    for a, b in product(TYPES, TYPES):
        assert promote(a, b) == DTYPES[torch.promote_types(TORCH[a], TORCH[b])], (a, b)


def test_dimensions_and_numbers_weigh_as_in_pytorch() -> None:
    for a, b in product(TYPES, TYPES):
        for shapes in product(((), (2,)), ((), (2,))):
            x, y = (torch.ones(shape, dtype=TORCH[t]) for shape, t in zip(shapes, (a, b), strict=True))
            views = [View(0, shape, (1,) * len(shape), t) for shape, t in zip(shapes, (a, b), strict=True)]
            assert result_type(*views) == DTYPES[torch.result_type(x, y)], (a, b, shapes)
        for number in (True, 2, 2.5):
            view = View(0, (2,), (1,), a)
            assert result_type(view, number) == DTYPES[torch.result_type(torch.ones(2, dtype=TORCH[a]), number)]


@examples(300)
@given(number=st.floats(-1e5, 1e5) | st.sampled_from((1e300, -1e300, float("inf"), 1e-30, -0.0)))
def test_numbers_round_to_a_type_as_a_tensor_holds_them(number: float) -> None:
    for name in ("f64", "f32", "f16", "bf16"):
        assert rounded(number, name) == float(torch.tensor(number, dtype=torch.float64).to(TORCH[name])), name


@pytest.mark.parametrize(
    ("number", "name", "held"), [(-3, "u8", 253), (300, "u8", 44), (200, "i8", -56), (7, "i64", 7)]
)
def test_integers_wrap(number: int, name: str, held: int) -> None:
    assert rounded(number, name) == held
