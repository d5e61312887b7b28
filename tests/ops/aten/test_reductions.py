"""Reductions against PyTorch, over drawn shapes, strides, dimensions and types."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from heliograph.ops.aten.reductions import RELATIVE

from ..harness import LEVELS, examples, shuffled, singles_backwards
from ..memory import DTYPES
from .draws import EVERY, FLOATS, INTEGERS, SEEDS, generator, strided, values
from .harness import all_equal, aten, ours, same_bytes, theirs, within

ON_LEVELS = st.sampled_from(LEVELS)
SHAPES = st.lists(st.sampled_from((1, 2, 3, 16, 17, 40)), min_size=1, max_size=3).map(tuple)


def some_dims(data: st.DataObject, rank: int) -> list[int]:
    picked = data.draw(st.sets(st.integers(0, rank - 1), max_size=rank))
    return [d - rank if data.draw(st.booleans()) else d for d in sorted(picked)]


@examples(250)
@given(shape=SHAPES, data=st.data(), dtype=st.sampled_from(EVERY), seed=SEEDS, level=ON_LEVELS)
def test_sums_and_means(shape: tuple[int, ...], data: st.DataObject, dtype: torch.dtype, seed: int, level: str) -> None:
    source = generator(seed)
    x = strided(values(shape, dtype, source), source)
    dims, keep = some_dims(data, len(shape)), data.draw(st.booleans())
    got, want = ours(aten.sum.dim_IntList, x, dims, keep, level=level), theirs(aten.sum.dim_IntList, x, dims, keep)
    if dtype not in FLOATS:
        assert all_equal(got, want)
        return
    magnitude = x.double().abs().sum(dims, keep)
    assert within(got.out, want.out, RELATIVE[DTYPES[dtype]] * magnitude)
    mean, want_mean = ours(aten.mean.dim, x, dims, keep, level=level), theirs(aten.mean.dim, x, dims, keep)
    assert within(mean.out, want_mean.out, RELATIVE[DTYPES[dtype]] * x.double().abs().mean(dims, keep))
    wide = ours(aten.sum.dim_IntList, x, dims, keep, dtype=torch.float64, level=level)
    assert within(wide.out, x.double().sum(dims, keep), 1e-12 * magnitude)


@examples(250)
@given(shape=SHAPES, data=st.data(), dtype=st.sampled_from(EVERY), seed=SEEDS, level=ON_LEVELS)
def test_extremes_truth_and_positions_are_exact(
    shape: tuple[int, ...], data: st.DataObject, dtype: torch.dtype, seed: int, level: str
) -> None:
    source = generator(seed)
    x = values(shape, dtype, source)
    if dtype.is_floating_point and data.draw(st.booleans()):
        x[torch.rand(shape, generator=source) < 0.05] = float("nan")
    x = strided(x, source)
    dims, keep = some_dims(data, len(shape)), data.draw(st.booleans())
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    calls: list[tuple[torch._ops.OpOverload, tuple[object, ...]]] = [
        (aten.amax.default, (x, dims, keep)), (aten.amin.default, (x, dims, keep)),
        (aten.any.dims, (x, dims or None, keep)),
        (aten.any.dim, (x, dim, keep)), (aten.all.dim, (x, dim, keep)), (aten.any.default, (x,)),
        (aten.all.default, (x,)),
    ]  # fmt: skip
    if dtype != torch.bool:
        calls += [
            (aten.argmax.default, (x, dim, keep)),
            (aten.argmin.default, (x, None, keep)),
            (aten.max.default, (x,)),
        ]
        calls += [(aten.max.dim, (x, dim, keep)), (aten.min.dim, (x, dim, keep))]
    for op, args in calls:
        assert all_equal(ours(op, *args, level=level), theirs(op, *args)), op


@examples(100)
@given(shape=SHAPES, data=st.data(), dtype=st.sampled_from((*FLOATS, *INTEGERS)), seed=SEEDS, level=ON_LEVELS)
def test_products(shape: tuple[int, ...], data: st.DataObject, dtype: torch.dtype, seed: int, level: str) -> None:
    source = generator(seed)
    x = values(shape, dtype, source)
    x = strided(x.clamp(-1.5, 1.5) if dtype.is_floating_point else x, source)
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    for op, args in ((aten.prod.dim_int, (x, dim)), (aten.prod.default, (x,))):
        got, want = ours(op, *args, level=level), theirs(op, *args)
        if dtype in FLOATS:
            bound = 64 * RELATIVE[DTYPES[dtype]] * want.out.double().abs().nan_to_num(0.0, 0.0, 0.0) + 1e-30
            assert within(got.out.nan_to_num(0.0, 0.0, 0.0), want.out.nan_to_num(0.0, 0.0, 0.0), bound)
        else:
            assert all_equal(got, want)


@examples(120)
@given(
    shape=SHAPES, data=st.data(), dtype=st.sampled_from(FLOATS), correction=st.sampled_from((0, 1, 2)), seed=SEEDS,
    level=ON_LEVELS,
)  # fmt: skip
def test_variances(
    shape: tuple[int, ...], data: st.DataObject, dtype: torch.dtype, correction: int, seed: int, level: str
) -> None:
    source = generator(seed)
    x = strided(values(shape, dtype, source) + 2, source)
    dims, keep = some_dims(data, len(shape)) or None, data.draw(st.booleans())
    got = ours(aten.var_mean.correction, x, dims, correction=correction, keepdim=keep, level=level)
    want = theirs(aten.var_mean.correction, x, dims, correction=correction, keepdim=keep)
    for a, b in zip(got.outs, want.outs, strict=True):
        assert within(a, b, 4 * RELATIVE[DTYPES[dtype]] * (1 + b.double().abs().nan_to_num(0.0, 0.0, 0.0)))
    alone = ours(aten.var.correction, x, dims, correction=correction, keepdim=keep, level=level)
    assert same_bytes([alone.out], [got.outs[0]])


@examples(80)
@given(
    shape=SHAPES, data=st.data(), dtype=st.sampled_from(FLOATS), order=st.sampled_from((1, 2, float("inf"))),
    seed=SEEDS,
    level=ON_LEVELS,
)  # fmt: skip
def test_norms(
    shape: tuple[int, ...], data: st.DataObject, dtype: torch.dtype, order: float, seed: int, level: str
) -> None:
    source = generator(seed)
    x = strided(values(shape, dtype, source), source)
    dims = some_dims(data, len(shape)) or None
    got = ours(aten.linalg_vector_norm.default, x, order, dims, level=level).out
    exact = theirs(aten.linalg_vector_norm.default, x.double(), order, dims).out
    assert got.dtype == dtype
    assert within(got.double(), exact, RELATIVE[DTYPES[dtype]] * (1e-3 + exact))


@pytest.mark.parametrize("dtype", FLOATS)
def test_sums_of_nothing(level: str, dtype: torch.dtype) -> None:
    x = torch.ones(3, 0, 2, dtype=dtype)
    for op, args in ((aten.sum.dim_IntList, (x, [1])), (aten.mean.dim, (x, [1])), (aten.prod.dim_int, (x, 1)),
                     (aten.any.dim, (x, 1)),
                     (aten.all.dim, (x, 1)), (aten.sum.dim_IntList, (x, [0])), (aten.sum.default, (x,))):  # fmt: skip
        assert all_equal(ours(op, *args, level=level), theirs(op, *args)), op
    assert all_equal(
        ours(aten.sum.default, torch.tensor(3.0), level=level), theirs(aten.sum.default, torch.tensor(3.0))
    )


CASES = (
    (aten.sum.dim_IntList, ([-1],), {}), (aten.mean.dim, ([-1],), {}), (aten.amax.default, ([-1],), {}),
    (aten.var.correction, ([-1],), {"correction": 1}), (aten.argmax.default, (-1,), {}), (aten.prod.dim_int, (-1,), {}),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case[0]))
def test_a_row_has_the_same_bits_alone_in_any_batch_and_in_any_layout(
    level: str, case: tuple[torch._ops.OpOverload, tuple[object, ...], dict[str, object]], seed: int
) -> None:
    op, args, kwargs = case
    source = generator(seed)
    x = values((41, 1500), torch.float32, source)

    def run(tensor: Tensor, **how: object) -> Tensor:
        return ours(op, tensor, *args, level=level, **kwargs, **how).out  # type: ignore[arg-type]

    want = run(x)
    for split in (singles_backwards, shuffled(seed)):
        assert same_bytes([run(x, split=split)], [want])
    assert same_bytes([run(strided(x, source))], [want])
    for rows in ([7], [40, 3], list(range(0, 41, 2))):
        assert same_bytes([run(x[rows])], [want[rows]])
