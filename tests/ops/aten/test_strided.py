"""Merged walks visit the same addresses in the same order."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from heliograph.ops.aten.strided import expand, narrow, row_major, walk
from heliograph.ops.launch import View

from ..harness import examples

DIMS = st.lists(
    st.tuples(st.sampled_from((1, 2, 3)), st.sampled_from((0, 1, 2, 3, 6, -1)), st.integers(0, 4)), max_size=5
)


def offsets(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
    return [sum(i * s for i, s in zip(at, strides, strict=True)) for at in product(*(range(n) for n in shape))]


@examples(200)
@given(dims=DIMS)
def test_merging_keeps_every_offset_and_the_order(dims: list[tuple[int, int, int]]) -> None:
    shape = tuple(n for n, _, _ in dims)
    operands = (tuple(a for _, a, _ in dims), tuple(b for _, _, b in dims))
    merged = walk(shape, operands)
    assert 1 <= merged.rank <= max(1, len(shape))
    for before, after in zip(operands, merged.strides, strict=True):
        assert offsets(merged.shape, after) == offsets(shape, before)


@examples(100)
@given(dims=DIMS)
def test_reordering_keeps_the_pairs_of_offsets(dims: list[tuple[int, int, int]]) -> None:
    shape = tuple(n for n, _, _ in dims)
    operands = (tuple(a for _, a, _ in dims), tuple(b for _, _, b in dims))
    merged = walk(shape, operands, reorder=True)
    pairs = [sorted(zip(offsets(s, x), offsets(s, y), strict=True))
             for s, x, y in ((shape, *operands), (merged.shape, *merged.strides))]  # fmt: skip
    assert pairs[0] == pairs[1]


def test_contiguous_operands_become_one_dimension() -> None:
    shape = (2, 3, 1, 5)
    assert walk(shape, (row_major(shape), row_major(shape))).shape == (30,)
    transposed = walk((2, 3), ((1, 2), (1, 2)), reorder=True)
    assert transposed.shape == (6,)
    assert walk((), ((),)).shape == (1,)


def test_views_keep_their_place_in_memory() -> None:
    view = View(1000, (4, 1, 6), (6, 6, 1), "f32", 3)
    assert expand(view, (2, 4, 5, 6)) == View(1000, (2, 4, 5, 6), (0, 6, 0, 1), "f32", 3)
    assert narrow(view, 2, 5, 6, -1) == View(1020, (4, 1, 6), (6, 6, -1), "f32", 3)
    assert narrow(view, 0, 1, 2, 2) == View(1024, (2, 1, 6), (12, 6, 1), "f32", 3)
