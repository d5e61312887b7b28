"""Layer, group, batch and instance normalisation against f64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from heliograph.errors import UnsupportedOpError
from heliograph.ops.aten.normalization import RELATIVE

from ..harness import LEVELS, examples, shuffled, singles_backwards
from ..memory import DTYPES
from .draws import REAL, SEEDS, generator, strided, values
from .harness import aten, ours, same_bytes, theirs, within

ON_LEVELS = st.sampled_from(LEVELS)
EPS = 1e-5


def near(got: Tensor, exact: Tensor, weight: Tensor | None) -> bool:
    scale = 1.0 if weight is None else max(1.0, float(weight.double().abs().max()))
    return within(got.double(), exact, RELATIVE[DTYPES[got.dtype]] * scale * (1 + exact.abs()))


def wide(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.double()


@examples(120)
@given(
    lead=st.lists(st.sampled_from((1, 2, 5)), max_size=2).map(tuple),
    last=st.sampled_from(((7,), (16,), (33,), (3, 40), (600,))),
    dtype=st.sampled_from(REAL), given_=st.tuples(st.booleans(), st.booleans()), seed=SEEDS, level=ON_LEVELS,
)  # fmt: skip
def test_layer_norm(
    lead: tuple[int, ...], last: tuple[int, ...], dtype: torch.dtype, given_: tuple[bool, bool], seed: int, level: str
) -> None:
    source = generator(seed)
    x = strided(values(lead + last, dtype, source), source)
    weight, bias = (strided(values(last, dtype, source), source) if wanted else None for wanted in given_)
    got = ours(aten.native_layer_norm.default, x, list(last), weight, bias, EPS, level=level)
    assert near(got.out, F.layer_norm(x.double(), last, wide(weight), wide(bias), EPS), weight)
    want = theirs(aten.native_layer_norm.default, x, list(last), weight, bias, EPS)
    for a, b in zip(got.outs[1:], want.outs[1:], strict=True):
        assert within(a, b, 2.0**-6 * (1 + b.double().abs()) if dtype in REAL[1:] else 1e-4 * (1 + b.double().abs()))


@examples(100)
@given(
    batch=st.integers(1, 3), groups=st.sampled_from((1, 2, 4)), pixels=st.sampled_from(((), (5,), (3, 7), (40, 20))),
    dtype=st.sampled_from(REAL), given_=st.booleans(), seed=SEEDS, level=ON_LEVELS,
)  # fmt: skip
def test_group_norm(
    batch: int, groups: int, pixels: tuple[int, ...], dtype: torch.dtype, given_: bool, seed: int, level: str
) -> None:
    source = generator(seed)
    x = values((batch, 12, *pixels), dtype, source)
    weight, bias = (values((12,), dtype, source) if given_ else None for _ in range(2))
    area = x[0, 0].numel()
    got = ours(aten.native_group_norm.default, x, weight, bias, batch, 12, area, groups, EPS, level=level)
    if 12 // groups * area > 1:
        assert near(got.out, F.group_norm(x.double(), groups, wide(weight), wide(bias), EPS), weight)


@examples(100)
@given(
    shape=st.sampled_from(((3, 5), (2, 7, 9), (2, 4, 5, 6))), dtype=st.sampled_from(REAL),
    given_=st.tuples(st.booleans(), st.booleans()), last=st.booleans(), seed=SEEDS, level=ON_LEVELS,
)  # fmt: skip
def test_batch_norm_with_running_and_with_own_statistics(
    shape: tuple[int, ...], dtype: torch.dtype, given_: tuple[bool, bool], last: bool, seed: int, level: str
) -> None:
    source = generator(seed)
    x = values(shape, dtype, source)
    if last and len(shape) == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    weight, bias = (values(shape[1:2], dtype, source) if wanted else None for wanted in given_)
    mean, var = values(shape[1:2], dtype, source), values(shape[1:2], dtype, source).abs() + 0.5
    args = (x, weight, bias, mean, var, 0.1, EPS)
    got = ours(aten._native_batch_norm_legit_no_training.default, *args, level=level).out
    exact = F.batch_norm(x.double(), mean.double(), var.double(), wide(weight), wide(bias), False, 0.1, EPS)
    magnitude = (x.double().abs().max() + mean.double().abs().max()) * (
        1 if weight is None else weight.double().abs().max() + 1
    )
    assert within(got.double(), exact, 4 * RELATIVE[DTYPES[dtype]] * magnitude)
    got = ours(aten._native_batch_norm_legit.no_stats, x, weight, bias, True, 0.1, EPS, level=level).out
    exact = F.batch_norm(x.double(), None, None, wide(weight), wide(bias), True, 0.1, EPS)
    assert within(got.double(), exact, 8 * RELATIVE[DTYPES[dtype]] * magnitude)


def test_a_row_has_the_same_bits_alone_and_in_any_batch(level: str, seed: int) -> None:
    source = generator(seed)
    x, weight = values((23, 700), torch.float32, source), values((700,), torch.float32, source)
    args = ([700], weight, weight, EPS)
    want = ours(aten.native_layer_norm.default, x, *args, level=level).out
    for split in (singles_backwards, shuffled(seed)):
        assert same_bytes([ours(aten.native_layer_norm.default, x, *args, level=level, split=split).out], [want])
    for rows in ([5], [22, 2], list(range(0, 23, 3))):
        assert same_bytes([ours(aten.native_layer_norm.default, x[rows], *args, level=level).out], [want[rows]])


def test_statistics_that_training_updates_are_refused() -> None:
    x, ones = torch.randn(3, 4), torch.ones(4)
    with pytest.raises(UnsupportedOpError) as refused:
        ours(aten.native_batch_norm.default, x, ones, ones, ones, ones, True, 0.1, EPS)
    assert "eval" in refused.value.required
    got = ours(aten.native_batch_norm.default, x, ones, ones, ones, ones, False, 0.1, EPS).out
    assert torch.allclose(got, F.batch_norm(x, ones, ones, ones, ones), atol=1e-6)
