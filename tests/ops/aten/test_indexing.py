"""Reading and writing at positions, exactly, over drawn shapes, strides and types."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from heliograph.errors import UnsupportedOpError

from ..harness import LEVELS, examples, shuffled, singles_backwards
from .draws import EVERY, SEEDS, generator, strided, values
from .harness import all_equal, aten, ours, same_bytes, theirs

ON_LEVELS = st.sampled_from(LEVELS)
DTYPES = st.sampled_from(EVERY)
EXTENT = st.sampled_from((1, 2, 3, 5, 17))
SHAPES = st.lists(EXTENT, min_size=1, max_size=4).map(tuple)
POSITIONS = st.sampled_from((torch.int64, torch.int32))


def positions(shape: tuple[int, ...], extent: int, source: torch.Generator, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(-extent, extent, shape, generator=source).to(dtype)


@examples(120)
@given(
    rows=EXTENT, width=st.sampled_from((0, 1, 7, 64)), shape=st.lists(EXTENT, max_size=3).map(tuple), dtype=DTYPES,
    kind=POSITIONS, seed=SEEDS, level=ON_LEVELS,
)  # fmt: skip
def test_embedding(
    rows: int, width: int, shape: tuple[int, ...], dtype: torch.dtype, kind: torch.dtype, seed: int, level: str
) -> None:
    source = generator(seed)
    table = strided(values((rows, width), dtype, source), source)
    ids = strided(positions(shape, rows, source, kind).abs() % rows, source)
    assert all_equal(ours(aten.embedding.default, table, ids, level=level), theirs(aten.embedding.default, table, ids))


@examples(120)
@given(shape=SHAPES, data=st.data(), dtype=DTYPES, seed=SEEDS, level=ON_LEVELS)
def test_reading_along_a_dimension(
    shape: tuple[int, ...], data: st.DataObject, dtype: torch.dtype, seed: int, level: str
) -> None:
    source = generator(seed)
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = strided(values(shape, dtype, source), source)
    row = positions((data.draw(st.sampled_from((0, 1, 4, 33))),), shape[dim], source) % shape[dim]
    assert all_equal(
        ours(aten.index_select.default, x, dim, row, level=level), theirs(aten.index_select.default, x, dim, row)
    )
    wide = [data.draw(st.integers(1, n)) for n in shape]
    wide[dim] = 6
    index = strided(positions(tuple(wide), shape[dim], source) % shape[dim], source)
    assert all_equal(ours(aten.gather.default, x, dim, index, level=level), theirs(aten.gather.default, x, dim, index))


# Which dimensions of a tensor of rank 4 are indexed, and the indices' shapes.
LAYOUTS = (
    ((0,), ((3,),)), ((2,), ((2, 3),)), ((0, 1), ((4,), (4,))), ((1, 2), ((3, 1), (4,))), ((0, 2), ((3,), (3,))),
    ((1, 3), ((2, 1), (1, 5))), ((0, 1, 2, 3), ((3,),) * 4), ((0,), ((),)), ((3,), ((0,),)),
)  # fmt: skip


@examples(150)
@given(layout=st.sampled_from(LAYOUTS), dtype=DTYPES, kind=POSITIONS, seed=SEEDS, level=ON_LEVELS)
def test_advanced_indexing_reads_and_writes(
    layout: tuple[tuple[int, ...], tuple[tuple[int, ...], ...]],
    dtype: torch.dtype,
    kind: torch.dtype,
    seed: int,
    level: str,
) -> None:
    source = generator(seed)
    x = strided(values((3, 4, 2, 5), dtype, source), source)
    indices: list[Tensor | None] = [None] * (max(layout[0]) + 1)
    for dim, shape in zip(*layout, strict=True):
        indices[dim] = positions(shape, x.shape[dim], source, kind)
    want = theirs(aten.index.Tensor, x, indices)
    assert all_equal(ours(aten.index.Tensor, x, indices, level=level), want)
    new = strided(values(tuple(want.out.shape), dtype, source), source)
    times = theirs(aten.index_put.default, torch.zeros(x.shape), indices, torch.ones(want.out.shape), True).out
    for args in ((x, indices, values((), dtype, source)), (x, indices, new), (x, indices, new, True)):
        if args[-1] is True and dtype in (torch.float16, torch.bfloat16):
            continue  # PyTorch's order of rounding is its own
        if args[-1] is new and times.max() > 1:
            continue  # PyTorch leaves open which of two values at one position wins
        got, want_put = ours(aten.index_put.default, *args, level=level), theirs(aten.index_put.default, *args)
        close = dtype.is_floating_point and args[-1] is True
        assert torch.allclose(got.out, want_put.out, atol=1e-5) if close else all_equal(got, want_put)
        again = ours(aten.index_put_.default, *args, level=level)
        assert same_bytes([again.tensors[0]], [got.out])


@examples(60)
@given(shape=SHAPES, dtype=DTYPES, seed=SEEDS, level=ON_LEVELS)
def test_one_value_under_a_mask(shape: tuple[int, ...], dtype: torch.dtype, seed: int, level: str) -> None:
    source = generator(seed)
    x = strided(values(shape, dtype, source), source)
    for mask in (values(shape, torch.bool, source), values(shape[:1], torch.bool, source)):
        args = (x, [mask], values((), dtype, source))
        assert all_equal(ours(aten.index_put.default, *args, level=level), theirs(aten.index_put.default, *args))


@examples(120)
@given(shape=SHAPES, data=st.data(), dtype=DTYPES, seed=SEEDS, level=ON_LEVELS)
def test_scatter(shape: tuple[int, ...], data: st.DataObject, dtype: torch.dtype, seed: int, level: str) -> None:
    source = generator(seed)
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = strided(values(shape, dtype, source), source)
    small = tuple(data.draw(st.integers(1, n)) for n in shape)
    order = torch.rand(shape, generator=source).argsort(dim)  # each position once
    index = strided(order[tuple(slice(0, n) for n in small)].contiguous(), source)
    src = strided(values(shape, dtype, source), source)
    for op, args in (
        (aten.scatter.src, (x, dim, index, src)), (aten.scatter.value, (x, dim, index, 1)),
        (aten.scatter_.src, (x, dim, index, src)), (aten.scatter_add.default, (x, dim, index, src)),
    ):  # fmt: skip
        if op is aten.scatter_add.default and dtype in (torch.float16, torch.bfloat16):
            continue
        assert all_equal(ours(op, *args, level=level), theirs(op, *args)), op
    if dtype != torch.bool:
        for how in ("amax", "amin", "sum", "prod"):
            args = (x.float(), dim, index, src.float(), how)
            got, want = (run(aten.scatter_reduce.two, *args).out for run in (ours, theirs))
            assert torch.allclose(got, want), how


def test_the_last_of_equal_positions_wins_in_every_cut(level: str, seed: int) -> None:
    source = generator(seed)
    x, new = torch.zeros(5), values((9000,), torch.float32, source)
    index = torch.randint(0, 5, (9000,), generator=source)
    last = torch.stack([new[index == i][-1] for i in range(5)])
    for split in (singles_backwards, shuffled(seed)):
        assert same_bytes([ours(aten.index_put.default, x, [index], new, level=level, split=split).out], [last])
        assert same_bytes([ours(aten.scatter.src, x, 0, index, new, level=level, split=split).out], [last])


def test_positions_out_of_range_read_nan_and_write_nothing(level: str) -> None:
    table = torch.arange(6.0).view(3, 2)
    ids = torch.tensor([0, 3, -4, 2**40, -1])
    got = ours(aten.embedding.default, table, ids, level=level, returns=[torch.empty(5, 2)]).out
    assert torch.equal(got[[0, 4]], table[[0, 2]])
    assert got[1:4].isnan().all()
    nines = torch.full((5, 2), 9.0)
    written = ours(aten.index_put.default, table, [ids], nines, level=level, returns=[table]).out
    assert written.tolist() == [[9.0, 9.0], [2.0, 3.0], [9.0, 9.0]]


def test_reads_do_not_depend_on_how_their_grid_is_cut(level: str, seed: int) -> None:
    source = generator(seed)
    table, ids = torch.randn(50, 300, generator=source), torch.randint(0, 50, (70,), generator=source)
    want = table[ids]
    for split in (singles_backwards, shuffled(seed)):
        assert same_bytes([ours(aten.embedding.default, table, ids, level=level, split=split).out], [want])


def test_masks_that_decide_a_shape_and_mixed_types_are_refused() -> None:
    x, mask = torch.ones(4, 3), torch.tensor([True, False, True, False])
    with pytest.raises(UnsupportedOpError) as refused:
        ours(aten.index.Tensor, x, [mask])
    assert refused.value.found == "a mask as index"
    assert ours(aten.index.Tensor, x, [mask.long()]).out.shape == (4, 3)
    with pytest.raises(UnsupportedOpError) as refused:
        ours(aten.index_put.default, x, [mask], torch.ones(2, 3))
    assert refused.value.required == "one value"
    assert ours(aten.index_put.default, x, [mask], torch.tensor(2.0)).out.sum() == 6 + 12
