"""Matrix products and convolutions against f64, within the product of magnitudes; the same bits for any rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from heliograph.errors import UnsupportedOpError
from heliograph.ops.aten.products import RELATIVE

from ..harness import LEVELS, examples, shuffled, singles_backwards
from ..memory import DTYPES
from .draws import REAL, SEEDS, generator, strided, values
from .harness import aten, ours, same_bytes, within

ON_LEVELS = st.sampled_from(LEVELS)
SIZES = st.sampled_from((1, 2, 3, 15, 16, 17, 33, 34, 0))
DEPTHS = st.sampled_from((1, 2, 15, 16, 17, 255, 256, 300, 0))


def near(got: Tensor, exact: Tensor, magnitude: Tensor) -> bool:
    smallest = 2.0**-24 if got.dtype == torch.float16 else 0.0
    return within(got.double(), exact, RELATIVE[DTYPES[got.dtype]] * magnitude + smallest)


@examples(200)
@given(m=SIZES, n=SIZES, k=DEPTHS, dtype=st.sampled_from(REAL), seed=SEEDS, level=ON_LEVELS)
def test_products_of_two_and_with_an_addition(
    m: int, n: int, k: int, dtype: torch.dtype, seed: int, level: str
) -> None:
    source = generator(seed)
    a, b = strided(values((m, k), dtype, source), source), strided(values((k, n), dtype, source), source)
    exact, magnitude = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    assert near(ours(aten.mm.default, a, b, level=level).out, exact, magnitude)
    for bias in (
        values((n,), dtype, source),
        strided(values((m, n), dtype, source), source),
        values((), dtype, source),
    ):
        got = ours(aten.addmm.default, bias, a, b, level=level).out
        assert near(got, exact + bias.double(), magnitude + bias.double().abs())
        got = ours(aten.addmm.default, bias, a, b, beta=0.5, alpha=-2, level=level).out
        assert near(got, 0.5 * bias.double() - 2 * exact, 2 * magnitude + bias.double().abs())
    nan = torch.full((n,), float("nan"), dtype=dtype)
    assert near(ours(aten.addmm.default, nan, a, b, beta=0, level=level).out, exact, magnitude)


@examples(100)
@given(
    batch=st.integers(0, 4), m=SIZES, n=SIZES, k=DEPTHS, dtype=st.sampled_from(REAL), shared=st.booleans(), seed=SEEDS,
    level=ON_LEVELS,
)  # fmt: skip
def test_products_of_batches(
    batch: int, m: int, n: int, k: int, dtype: torch.dtype, shared: bool, seed: int, level: str
) -> None:
    source = generator(seed)
    a = strided(values((batch, m, k), dtype, source), source)
    b = (
        values((k, n), dtype, source).expand(batch, k, n)
        if shared
        else strided(values((batch, k, n), dtype, source), source)
    )
    got = ours(aten.bmm.default, a, b, level=level).out
    assert near(got, a.double() @ b.double(), a.double().abs() @ b.double().abs())


def test_vectors(level: str, seed: int) -> None:
    source = generator(seed)
    a, x, y = (
        values((5, 37), torch.float32, source),
        values((37,), torch.float32, source),
        values((5,), torch.float32, source),
    )
    want = ours(aten.mm.default, a, x[:, None], level=level).out[:, 0]
    assert same_bytes([ours(aten.mv.default, a, x, level=level).out], [want])
    assert same_bytes([ours(aten.addmv.default, y, a, x, level=level).out], [want + y])
    assert same_bytes([ours(aten.dot.default, a[0], x, level=level).out], [want[0]])


def test_a_row_has_the_same_bits_for_any_number_of_rows_and_any_layout(level: str, seed: int) -> None:
    """Matrix-vector and matrix-matrix form, packed and in place, and every cut of the grid add in one order."""
    source = generator(seed)
    a, b = torch.randn(67, 600, generator=source), torch.randn(600, 50, generator=source)
    want = ours(aten.mm.default, a, b, level=level).out
    for split in (singles_backwards, shuffled(seed)):
        assert same_bytes([ours(aten.mm.default, a, b, level=level, split=split).out], [want])
    columns = b.t().contiguous().t()
    for left, right in ((a, columns), (strided(a, source), b), (strided(a, source), columns), (a, strided(b, source))):
        assert same_bytes([ours(aten.mm.default, left, right, level=level).out], [want])
    for rows in ([3], [66, 0], list(range(0, 67, 4)), list(range(33))):
        for right in (b, columns):
            assert same_bytes([ours(aten.mm.default, a[rows], right, level=level).out], [want[rows]])
    assert same_bytes([ours(aten.bmm.default, a[None], b[None], level=level).out[0]], [want])
    assert same_bytes([ours(aten.mm.default, a, b[:, 7:9], level=level).out], [want[:, 7:9]])


@pytest.mark.parametrize("place", [0, 5, 20])
def test_element_k_goes_to_lane_k_modulo_16(level: str, place: int) -> None:
    """2^25 and later -2^25 swallow a one between them in their own lane and leave those of other lanes alone."""
    for other in range(place + 1, place + 32):
        a = torch.zeros(1, 80)
        a[0, place], a[0, other], a[0, place + 32] = 2.0**25, 1.0, -(2.0**25)
        got = float(ours(aten.mm.default, a, torch.ones(80, 1), level=level).out)
        assert got == (0.0 if (other - place) % 16 == 0 else 1.0)


# ---- convolutions --------------------------------------------------------------------------------------------------
def convolved(
    x: Tensor, weight: Tensor, bias: Tensor | None, options: dict[str, object], level: str, **how: object
) -> Tensor:
    dims = weight.dim() - 2

    def each(value: object) -> list[int]:
        return [value] * dims if isinstance(value, int) else list(value)  # type: ignore[call-overload,no-any-return]

    args = (
        each(options["stride"]),
        each(options["padding"]),
        each(options["dilation"]),
        False,
        [0] * dims,
        options["groups"],
    )
    return ours(aten.convolution.default, x, weight, bias, *args, level=level, **how).out  # type: ignore[arg-type]


@examples(150)
@given(
    groups=st.sampled_from((1, 2, 3)), channels=st.integers(1, 5), filters=st.sampled_from((1, 2, 11, 34)),
    kernel=st.sampled_from(((1, 1), (3, 3), (2, 5), (7, 1))), stride=st.integers(1, 3), padding=st.integers(0, 3),
    dilation=st.integers(1, 2), size=st.tuples(st.integers(8, 15), st.integers(9, 20)), dtype=st.sampled_from(REAL),
    bias=st.booleans(), last=st.booleans(), batch=st.integers(0, 2), seed=SEEDS, level=ON_LEVELS,
)  # fmt: skip
def test_convolutions_in_two_dimensions(
    groups: int, channels: int, filters: int, kernel: tuple[int, int], stride: int, padding: int, dilation: int,
    size: tuple[int, int], dtype: torch.dtype, bias: bool, last: bool, batch: int, seed: int, level: str,
) -> None:  # fmt: skip
    source = generator(seed)
    x = values((batch, groups * channels, *size), dtype, source)
    weight = values((groups * filters, channels, *kernel), dtype, source)
    if last:
        x, weight = (t.contiguous(memory_format=torch.channels_last) for t in (x, weight))
    b = values((groups * filters,), dtype, source) if bias else None
    options: dict[str, object] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    if (size[0] + 2 * padding) < dilation * (kernel[0] - 1) + 1:
        return
    got = convolved(x, weight, b, options, level)
    wide = None if b is None else b.double()
    exact = F.conv2d(x.double(), weight.double(), wide, **options)  # type: ignore[call-overload]
    magnitude = F.conv2d(x.double().abs(), weight.double().abs(), None if wide is None else wide.abs(), **options)  # type: ignore[call-overload]
    assert near(got, exact, magnitude)


@examples(60)
@given(
    groups=st.sampled_from((1, 4)), kernel=st.integers(1, 5), stride=st.integers(1, 3), padding=st.integers(0, 3),
    dilation=st.integers(1, 2), dtype=st.sampled_from(REAL), seed=SEEDS, level=ON_LEVELS,
)  # fmt: skip
def test_convolutions_in_one_dimension(
    groups: int, kernel: int, stride: int, padding: int, dilation: int, dtype: torch.dtype, seed: int, level: str
) -> None:
    source = generator(seed)
    x, weight = values((2, 8, 40), dtype, source), values((12, 8 // groups, kernel), dtype, source)
    bias = values((12,), dtype, source)
    options: dict[str, object] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    got = convolved(x, weight, bias, options, level)
    exact = F.conv1d(x.double(), weight.double(), bias.double(), **options)  # type: ignore[call-overload]
    magnitude = F.conv1d(x.double().abs(), weight.double().abs(), bias.double().abs(), **options)  # type: ignore[call-overload]
    assert near(got, exact, magnitude)


def test_a_sample_has_the_same_bits_in_any_batch_and_any_layout(level: str, seed: int) -> None:
    source = generator(seed)
    x, weight = torch.randn(5, 40, 13, 11, generator=source), torch.randn(37, 40, 3, 3, generator=source)
    options: dict[str, object] = {"stride": 1, "padding": 1, "dilation": 1, "groups": 1}
    want = convolved(x, weight, None, options, level)
    for split in (singles_backwards, shuffled(seed)):
        assert same_bytes([convolved(x, weight, None, options, level, split=split)], [want])
    last = torch.channels_last
    for image, filters in ((x.contiguous(memory_format=last), weight), (x, weight.contiguous(memory_format=last))):
        assert same_bytes([convolved(image, filters, None, options, level)], [want])
    assert same_bytes([convolved(x[3:4], weight, None, options, level)], [want[3:4]])


def test_transposed_convolutions_and_f64_products_are_refused_by_name() -> None:
    x, weight = torch.ones(1, 2, 5, 5), torch.ones(2, 3, 3, 3)
    with pytest.raises(UnsupportedOpError) as refused:
        ours(aten.convolution.default, x, weight, None, [1, 1], [0, 0], [1, 1], True, [0, 0], 1)
    assert refused.value.found == "a transposed convolution"
    plain = ours(aten.convolution.default, x, weight.transpose(0, 1), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    assert plain.out.unique().tolist() == [18.0]
    with pytest.raises(UnsupportedOpError) as refused:
        ours(aten.mm.default, torch.ones(2, 2, dtype=torch.float64), torch.ones(2, 2, dtype=torch.float64))
    assert refused.value.doing == "lowering aten.mm.default of f64[2, 2], f64[2, 2]"
    assert ours(aten.mm.default, torch.ones(2, 2), torch.ones(2, 2)).out.unique().tolist() == [2.0]
