"""Softmax, running sums and sorting against PyTorch; a row is computed alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heliograph.errors import UnsupportedOpError
from heliograph.ops.aten.rows import RELATIVE

from ..harness import LEVELS, examples, shuffled, singles_backwards
from ..memory import DTYPES
from .draws import EVERY, FLOATS, INTEGERS, REAL, SEEDS, generator, strided, values
from .harness import all_equal, aten, ours, same_bytes, theirs, within

ON_LEVELS = st.sampled_from(LEVELS)
SHAPES = st.lists(st.sampled_from((1, 2, 5, 16, 17, 33)), min_size=1, max_size=3).map(tuple)


@examples(150)
@given(shape=SHAPES, data=st.data(), dtype=st.sampled_from(REAL), seed=SEEDS, level=ON_LEVELS)
def test_softmax(shape: tuple[int, ...], data: st.DataObject, dtype: torch.dtype, seed: int, level: str) -> None:
    source = generator(seed)
    x = values(shape, dtype, source) * data.draw(st.sampled_from((1, 30)))
    if data.draw(st.booleans()):
        x[torch.rand(shape, generator=source) < 0.2] = float("-inf")
    x = strided(x, source)
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    got = ours(aten._softmax.default, x, dim, False, level=level).out
    exact = x.double().softmax(dim)
    assert got.dtype == dtype
    assert within(got.double(), exact, RELATIVE[DTYPES[dtype]])
    got = ours(aten._log_softmax.default, x, dim, False, level=level).out
    exact = x.double().log_softmax(dim)
    assert within(got.double(), exact, RELATIVE[DTYPES[dtype]] * (1 + exact.abs().nan_to_num(0.0, 0.0, 0.0)))


@examples(100)
@given(shape=SHAPES, data=st.data(), dtype=st.sampled_from(EVERY), seed=SEEDS, level=ON_LEVELS)
def test_running_sums(shape: tuple[int, ...], data: st.DataObject, dtype: torch.dtype, seed: int, level: str) -> None:
    source = generator(seed)
    x = strided(values(shape, dtype, source), source)
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    got, want = ours(aten.cumsum.default, x, dim, level=level), theirs(aten.cumsum.default, x, dim)
    if dtype in FLOATS:
        assert within(got.out, want.out, 2.0**-7 * x.double().abs().cumsum(dim) if dtype in REAL[1:] else 1e-5)
        assert within(got.out, x.double().cumsum(dim).to(dtype), 0.0 if dtype in REAL else 1e-12)
    else:
        assert all_equal(got, want)


@examples(150)
@given(
    shape=SHAPES, data=st.data(), dtype=st.sampled_from((*FLOATS, *INTEGERS)), down=st.booleans(), seed=SEEDS,
    level=ON_LEVELS,
)  # fmt: skip
def test_sorting_is_stable(
    shape: tuple[int, ...], data: st.DataObject, dtype: torch.dtype, down: bool, seed: int, level: str
) -> None:
    source = generator(seed)
    x = values(shape, dtype, source)
    if dtype.is_floating_point:
        x[torch.rand(shape, generator=source) < 0.05] = float("nan")
    x = strided(x, source)
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    kwargs = {"stable": True, "dim": dim, "descending": down}
    assert all_equal(ours(aten.sort.stable, x, level=level, **kwargs), theirs(aten.sort.stable, x, **kwargs))
    k = data.draw(st.integers(0, shape[dim]))
    got, order = ours(aten.topk.default, x, k, dim, down, level=level), theirs(aten.sort.stable, x, **kwargs)
    for a, b in zip(got.outs, order.outs, strict=True):
        assert torch.equal(a.nan_to_num(77.0), b.narrow(dim, 0, k).nan_to_num(77.0))


def test_a_row_has_the_same_bits_alone_in_any_batch_and_in_any_layout(level: str, seed: int) -> None:
    source = generator(seed)
    x = values((37, 1333), torch.float32, source)
    for op, args in (
        (aten._softmax.default, (-1, False)),
        (aten._log_softmax.default, (-1, False)),
        (aten.cumsum.default, (-1,)),
    ):
        want = ours(op, x, *args, level=level).out
        for split in (singles_backwards, shuffled(seed)):
            assert same_bytes([ours(op, x, *args, level=level, split=split).out], [want])
        assert same_bytes([ours(op, strided(x, source), *args, level=level).out], [want])
        for rows in ([5], [36, 2], list(range(0, 37, 3))):
            assert same_bytes([ours(op, x[rows], *args, level=level).out], [want[rows]])


def test_softmax_in_f64_is_refused() -> None:
    with pytest.raises(UnsupportedOpError) as refused:
        ours(aten._softmax.default, torch.ones(2, 3, dtype=torch.float64), -1, False)
    assert "f64[2, 3]" in refused.value.doing
    assert refused.value.required == "f32, f16 or bf16"
    assert ours(aten._softmax.default, torch.ones(2, 4), -1, False).out.tolist() == [[0.25] * 4] * 2


def test_rows_of_nothing_and_of_one_number(level: str) -> None:
    assert ours(aten._softmax.default, torch.ones(3, 0), -1, False, level=level).out.shape == (3, 0)
    for x in (torch.tensor(3.0), torch.ones(0, 4)):
        assert all_equal(
            ours(aten._softmax.default, x, 0, False, level=level), theirs(aten._softmax.default, x, 0, False)
        )
        assert all_equal(ours(aten.sort.default, x, level=level), theirs(aten.sort.default, x))
        assert all_equal(ours(aten.cumsum.default, x, 0, level=level), theirs(aten.cumsum.default, x, 0))
