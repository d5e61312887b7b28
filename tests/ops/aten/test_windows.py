"""Pooling and resampling against PyTorch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heliograph.errors import UnsupportedOpError
from heliograph.ops.aten.windows import RELATIVE

from ..harness import LEVELS, examples, shuffled, singles_backwards
from ..memory import DTYPES
from .draws import REAL, SEEDS, generator, strided, values
from .harness import all_equal, aten, ours, same_bytes, theirs, within

ON_LEVELS = st.sampled_from(LEVELS)
LEAD = st.sampled_from(((3,), (1, 2), (2, 5)))
SIZE = st.tuples(st.integers(4, 12), st.integers(4, 19))


@examples(120)
@given(
    lead=LEAD, size=SIZE, kernel=st.sampled_from(([2, 2], [3, 3], [3, 2])),
    stride=st.sampled_from(([], [1, 1], [2, 3])),
    padding=st.integers(0, 1), dilation=st.integers(1, 2), ceil=st.booleans(), dtype=st.sampled_from(REAL),
    last=st.booleans(),
    nan=st.booleans(), seed=SEEDS, level=ON_LEVELS,
)  # fmt: skip
def test_max_pooling_is_exact(
    lead: tuple[int, ...], size: tuple[int, int], kernel: list[int], stride: list[int], padding: int, dilation: int,
    ceil: bool, dtype: torch.dtype, last: bool, nan: bool, seed: int, level: str,
) -> None:  # fmt: skip
    source = generator(seed)
    x = values(lead + size, dtype, source)
    if nan:
        x[torch.rand(x.shape, generator=source) < 0.03] = float("nan")
    if last and x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    if any(dilation * (k - 1) + 1 > n + 2 * padding for k, n in zip(kernel, size, strict=True)):
        return
    args = (x, kernel, stride, [padding, padding], [dilation, dilation], ceil)
    op = aten.max_pool2d_with_indices.default
    assert all_equal(ours(op, *args, level=level), theirs(op, *args))


@examples(120)
@given(
    lead=LEAD, size=SIZE, kernel=st.sampled_from(([2, 2], [3, 3], [3, 2])),
    stride=st.sampled_from(([], [1, 1], [2, 3])),
    padding=st.integers(0, 1), ceil=st.booleans(), include=st.booleans(), divisor=st.sampled_from((None, 5)),
    dtype=st.sampled_from(REAL), seed=SEEDS, level=ON_LEVELS,
)  # fmt: skip
def test_average_pooling(
    lead: tuple[int, ...], size: tuple[int, int], kernel: list[int], stride: list[int], padding: int, ceil: bool,
    include: bool, divisor: int | None, dtype: torch.dtype, seed: int, level: str,
) -> None:  # fmt: skip
    source = generator(seed)
    x = strided(values(lead + size, dtype, source), source)
    bound = 2 * RELATIVE[DTYPES[dtype]] * float(x.double().abs().max() + 1)
    args = (x, kernel, stride, [padding, padding], ceil, include, divisor)
    assert within(
        ours(aten.avg_pool2d.default, *args, level=level).out, theirs(aten.avg_pool2d.default, *args).out, bound
    )
    for out in ([1, 1], [3, 2], [13, 20]):
        got, want = (run(aten._adaptive_avg_pool2d.default, x, out).out for run in (ours, theirs))
        assert within(got, want, bound)


@examples(100)
@given(
    size=SIZE, out=SIZE, scales=st.sampled_from((None, [2.0, 3.0], [0.5, 1.5])), corners=st.booleans(),
    dtype=st.sampled_from(REAL), seed=SEEDS, level=ON_LEVELS,
)  # fmt: skip
def test_resampling(
    size: tuple[int, int], out: tuple[int, int], scales: list[float] | None, corners: bool, dtype: torch.dtype,
    seed: int, level: str,
) -> None:  # fmt: skip
    source = generator(seed)
    x = strided(values((2, 3, *size), dtype, source), source)
    factors = scales or [None, None]
    wanted = list(out) if scales is None else [int(n * s) for n, s in zip(size, scales, strict=True)]
    near = aten.upsample_nearest2d
    assert all_equal(ours(near.default, x, wanted, *factors, level=level), theirs(near.default, x, wanted, *factors))
    given_size = None if scales else wanted
    assert all_equal(ours(near.vec, x, given_size, scales, level=level), theirs(near.vec, x, given_size, scales))
    bound = 4 * RELATIVE[DTYPES[dtype]] * float(x.double().abs().max() + 1)
    line = aten.upsample_bilinear2d
    for op, args in ((line.default, (x, wanted, corners, *factors)), (line.vec, (x, given_size, corners, scales))):
        assert within(ours(op, *args, level=level).out, theirs(op, *args).out, bound)


def test_windows_do_not_depend_on_how_their_grid_is_cut(level: str, seed: int) -> None:
    x = values((2, 9, 30, 31), torch.float32, generator(seed))
    for op, args in (
        (aten.max_pool2d_with_indices.default, ([3, 3], [1, 1])), (aten.avg_pool2d.default, ([3, 3], [1, 1])),
        (aten._adaptive_avg_pool2d.default, ([17, 23],)), (aten.upsample_bilinear2d.default, ([40, 50], False)),
    ):  # fmt: skip
        want = ours(op, x, *args, level=level)
        for split in (singles_backwards, shuffled(seed)):
            assert same_bytes(ours(op, x, *args, level=level, split=split).outs, want.outs)


def test_pooling_in_f64_is_refused() -> None:
    with pytest.raises(UnsupportedOpError) as refused:
        ours(aten.avg_pool2d.default, torch.ones(1, 1, 4, 4, dtype=torch.float64), [2, 2])
    assert refused.value.required == "f32, f16 or bf16"
    assert ours(aten.avg_pool2d.default, torch.ones(1, 1, 4, 4), [2, 2]).out.unique().tolist() == [1.0]
