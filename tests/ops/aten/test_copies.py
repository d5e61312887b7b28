"""Ops that move elements, exactly, over drawn shapes, strides and types."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from ..harness import LEVELS, examples, shuffled, singles_backwards
from .draws import EVERY, FLOATS, INTEGERS, SEEDS, SHAPES, generator, strided, thinned, values
from .harness import all_equal, aten, ours, same_bytes, theirs, within

ON_LEVELS = st.sampled_from(LEVELS)
DTYPES = st.sampled_from(EVERY)


@examples(200)
@given(shape=SHAPES, dtype=DTYPES, seed=SEEDS, level=ON_LEVELS)
def test_copies_keep_every_bit(shape: tuple[int, ...], dtype: torch.dtype, seed: int, level: str) -> None:
    source = generator(seed)
    size = torch.empty(0, dtype=dtype).element_size()
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (*shape, size), generator=source, dtype=torch.uint8)
    x = strided(raw.view(dtype).squeeze(-1), source)  # any bits, signalling NaN too
    for op, kwargs in ((aten.clone.default, {}), (aten.clone.default, {"memory_format": torch.contiguous_format})):
        assert same_bytes([ours(op, x, level=level, **kwargs).out], [x])
    target = strided(values(shape, dtype, source), source)
    assert same_bytes([ours(aten.copy_.default, target, x, level=level).tensors[0]], [x])


@examples(250)
@given(shape=SHAPES, types=st.tuples(DTYPES, DTYPES), seed=SEEDS, level=ON_LEVELS)
def test_casts_between_all_types(
    shape: tuple[int, ...], types: tuple[torch.dtype, torch.dtype], seed: int, level: str
) -> None:
    source = generator(seed)
    x = values(shape, types[0], source)
    if types[1] == torch.uint8:
        x = x.abs() if types[0] != torch.bool else x  # a negative number as u8 is undefined for floats
    x = strided(x, source)
    assert all_equal(
        ours(aten._to_copy.default, x, dtype=types[1], level=level), theirs(aten._to_copy.default, x, dtype=types[1])
    )


def test_half_types_round_as_pytorch_rounds_every_kind_of_number(level: str) -> None:
    x = torch.arange(0, 2**32, 65521, dtype=torch.int64).to(torch.int32).view(torch.float32)
    for dtype in (torch.float16, torch.bfloat16):
        assert all_equal(
            ours(aten._to_copy.default, x, dtype=dtype, level=level), theirs(aten._to_copy.default, x, dtype=dtype)
        )
        every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
        assert all_equal(ours(aten._to_copy.default, every, dtype=torch.float32, level=level),
                         theirs(aten._to_copy.default, every, dtype=torch.float32))  # fmt: skip


@examples(80)
@given(shape=SHAPES, dtype=DTYPES, seed=SEEDS, level=ON_LEVELS)
def test_broadcast_copies_and_fills(shape: tuple[int, ...], dtype: torch.dtype, seed: int, level: str) -> None:
    source = generator(seed)
    target = strided(values(shape, dtype, source), source)
    small = strided(values(thinned(shape, source), torch.float32, source), source)
    for op, value in ((aten.copy_.default, small), (aten.fill_.Scalar, 3), (aten.fill_.Tensor, torch.tensor(2.0))):
        assert all_equal(ours(op, target, value, level=level), theirs(op, target, value))
    assert all_equal(ours(aten.zero_.default, target, level=level), theirs(aten.zero_.default, target))


@examples(100)
@given(
    shape=st.lists(st.sampled_from((1, 2, 3, 5, 17)), min_size=1, max_size=4).map(tuple), data=st.data(), dtype=DTYPES,
    seed=SEEDS, level=ON_LEVELS,
)  # fmt: skip
def test_joining_and_cutting(
    shape: tuple[int, ...], data: st.DataObject, dtype: torch.dtype, seed: int, level: str
) -> None:
    source = generator(seed)
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    parts = []
    for extent in (shape[dim], 4, 0, 1):
        one = list(shape)
        one[dim] = extent
        parts.append(strided(values(tuple(one), dtype, source), source))
    x = parts[0]
    index = data.draw(st.integers(-shape[dim], shape[dim] - 1))
    step = data.draw(st.integers(1, 3))
    start = data.draw(st.integers(-shape[dim], shape[dim]))
    cut = x.slice(dim, start, None, step) if hasattr(x, "slice") else aten.slice.Tensor(x, dim, start, None, step)
    for op, args in (
        (aten.cat.default, (parts, dim)),
        (aten.cat.default, ([*parts, values((0,), dtype, source)], dim)),
        (aten.stack.default, ([x, x], dim)),
        (aten.slice_scatter.default, (x, values(tuple(cut.shape), dtype, source), dim, start, None, step)),
        (aten.select_scatter.default, (x, values(tuple(x.select(dim, index).shape), dtype, source), dim, index)),
        (aten.flip.default, (x, [dim])),
        (aten.repeat.default, (x, [2, *(1 + (i + seed) % 2 for i in range(len(shape)))])),
    ):
        assert all_equal(ours(op, *args, level=level), theirs(op, *args)), op


@examples(80)
@given(
    shape=st.lists(st.sampled_from((2, 3, 5, 17)), min_size=2, max_size=4).map(tuple),
    pad=st.lists(st.integers(-1, 3), min_size=4, max_size=4), dtype=DTYPES, seed=SEEDS, level=ON_LEVELS,
)  # fmt: skip
def test_padding_and_cutting_edges(
    shape: tuple[int, ...], pad: list[int], dtype: torch.dtype, seed: int, level: str
) -> None:
    source = generator(seed)
    x = strided(values(shape, dtype, source), source)
    for args in ((x, pad), (x, pad[:2], 1)):
        assert all_equal(
            ours(aten.constant_pad_nd.default, *args, level=level), theirs(aten.constant_pad_nd.default, *args)
        )


@examples(60)
@given(
    start=st.integers(-9, 9), step=st.sampled_from((1, 2, -3, 0.5, -0.25)), count=st.integers(0, 5000), level=ON_LEVELS
)
def test_numbers_in_a_row(start: int, step: float, count: int, level: str) -> None:
    end = start + step * count
    for dtype in (None, torch.float32, torch.float16, torch.int32):
        kwargs = {} if dtype is None else {"dtype": dtype}
        if dtype == torch.int32 and isinstance(step, float):
            continue
        want = theirs(aten.arange.start_step, start, end, step, **kwargs)
        got = ours(aten.arange.start_step, start, end, step, level=level, **kwargs)
        if dtype == torch.float16:  # PyTorch adds up within a vector of f16
            assert within(got.out, want.out, 2.0**-10 * want.out.double().abs())
        else:
            assert all_equal(got, want)
    assert all_equal(ours(aten.arange.default, count, level=level), theirs(aten.arange.default, count))


def test_numbers_as_tensors(level: str) -> None:
    for dtype in EVERY:
        for op, args in (
            (aten.full.default, ([3, 5], 2)), (aten.zeros.default, ([7],)), (aten.ones.default, ([2, 2],)),
            (aten.scalar_tensor.default, (5,)),
        ):  # fmt: skip
            assert all_equal(ours(op, *args, dtype=dtype, level=level), theirs(op, *args, dtype=dtype))
        like = torch.zeros(3, 4, dtype=dtype).t()
        assert all_equal(ours(aten.full_like.default, like, 1, level=level), theirs(aten.full_like.default, like, 1))
    assert ours(aten.full.default, [2], -0.0, level=level).out.signbit().all()
    assert ours(aten.full.default, [2], float("-inf"), level=level).out.tolist() == [float("-inf")] * 2


def test_copies_do_not_depend_on_how_their_grid_is_cut(level: str, seed: int) -> None:
    x = values((70, 3, 131), torch.float32, generator(seed)).permute(2, 0, 1)
    want = ours(aten.clone.default, x, memory_format=torch.contiguous_format, level=level).out
    for split in (singles_backwards, shuffled(seed)):
        got = ours(aten.clone.default, x, memory_format=torch.contiguous_format, level=level, split=split).out
        assert same_bytes([got], [want])
    assert len(FLOATS) + len(INTEGERS) + 1 == len(EVERY)
