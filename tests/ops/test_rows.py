"""rms_norm, rope, silu_mul, add, gather_rows, resolve_ids, history_store: values, strides, tails, same bits per row."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Generator, Tensor

from heliograph.errors import UnsupportedOpError
from heliograph.ops import rms_norm, rope, silu_mul

from .harness import BUCKETS, call, examples, reference, same_bytes, shuffled, singles_backwards
from .packed import generator

SEEDS = st.integers(0, 2**31)


def strided(shape: tuple[int, ...], gaps: tuple[int, ...], source: Generator) -> Tensor:
    """A random tensor whose dimension i lies in one that is gaps[i] longer."""
    outer = torch.randn(tuple(n + g for n, g in zip(shape, gaps, strict=True)), generator=source)
    return outer[tuple(slice(0, n) for n in shape)]


@examples(40)
@given(
    rows=st.integers(0, 20), heads=st.integers(1, 5), dim=st.integers(1, 90), gaps=st.tuples(*[st.integers(0, 2)] * 3),
    flat=st.booleans(), seed=SEEDS,
)  # fmt: skip
def test_rms_norm_is_within_its_tolerance(
    level: str, rows: int, heads: int, dim: int, gaps: tuple[int, int, int], flat: bool, seed: int
) -> None:
    source = generator(seed)
    x = strided((rows, dim), gaps[1:], source) if flat else strided((rows, heads, dim), gaps, source)
    weight = torch.randn(dim, generator=source)
    got = call("rms_norm", x, weight, 1e-5, level=level, split=shuffled(seed)).out
    wide = x.double()
    want = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    assert ((got - want).abs() <= rms_norm.RELATIVE * want.abs()).all()


@examples(40)
@given(
    tokens=st.integers(0, 9), heads=st.integers(1, 4), dim=st.integers(1, 70), rest=st.integers(0, 5),
    interleaved=st.booleans(), gaps=st.tuples(*[st.integers(0, 2)] * 3), seed=SEEDS,
)  # fmt: skip
def test_rope_is_within_its_tolerance(
    level: str, tokens: int, heads: int, dim: int, rest: int, interleaved: bool, gaps: tuple[int, int, int], seed: int
) -> None:
    source = generator(seed)
    x = strided((tokens, heads, dim), gaps, source)
    pairs = max(0, dim // 2 - rest)
    positions = torch.randint(-1, 200_000, (tokens,), generator=source, dtype=torch.int32)
    inv_freq = torch.rand(pairs, generator=source)
    got = call("rope", x, positions, inv_freq, interleaved, level=level, split=singles_backwards).out
    angles = (positions.float()[:, None] * inv_freq).double()[:, None, :]
    a, b = (
        (x[..., 0 : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]) if interleaved else x[..., : 2 * pairs].chunk(2, dim=-1)
    )
    a, b = a.double(), b.double()
    first, second = a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()
    turned = torch.stack((first, second), -1).flatten(-2) if interleaved else torch.cat((first, second), -1)
    length = (a * a + b * b).sqrt()
    bound = torch.stack((length, length), -1).flatten(-2) if interleaved else torch.cat((length, length), -1)
    assert ((got[..., : 2 * pairs] - turned).abs() <= rope.ERROR * bound).all()
    assert same_bytes(got[..., 2 * pairs :], x[..., 2 * pairs :])


@examples(40)
@given(
    shape=st.lists(st.integers(0, 9), min_size=1, max_size=2), columns=st.integers(0, 1100), gap=st.integers(0, 3),
    seed=SEEDS,
)  # fmt: skip
@example(shape=[0, 0], columns=0, gap=0, seed=0)  # strides of 1 everywhere
@example(shape=[2, 3], columns=0, gap=0, seed=0)
def test_silu_mul_and_add_hold_for_all_shapes(level: str, shape: list[int], columns: int, gap: int, seed: int) -> None:
    source = generator(seed)
    rows = 1
    for extent in shape:
        rows *= extent
    x = strided((rows, columns), (0, gap), source) * 10
    y = torch.randn((rows, columns), generator=source)
    if gap == 0:
        x, y = x.reshape(*shape, columns), y.reshape(*shape, columns)
    assert same_bytes(call("add", x, y, level=level, split=shuffled(seed)).out, x + y)
    got = call("silu_mul", x, y, level=level, split=shuffled(seed)).out
    want = x.double() / (1 + (-x.double()).exp()) * y
    assert ((got - want).abs() <= silu_mul.RELATIVE * want.abs() + 1e-37).all()


@examples(30)
@given(rows=st.integers(0, 9), columns=st.integers(0, 70), count=st.integers(0, 12), gap=st.integers(0, 2), seed=SEEDS)
def test_gather_rows_copies_and_gives_zeros_outside(
    level: str, rows: int, columns: int, count: int, gap: int, seed: int
) -> None:
    source = generator(seed)
    x = strided((rows, columns), (0, gap), source)
    index = torch.randint(-2, rows + 2, (count,), generator=source, dtype=torch.int32)
    (want,), _ = reference("gather_rows", x, index)
    assert same_bytes(call("gather_rows", x, index, level=level, split=singles_backwards).out, want)


@examples(30)
@given(count=st.integers(0, 3000), slots=st.integers(1, 6), context=st.integers(1, 2000), seed=SEEDS)
def test_resolve_ids_and_history_store_are_exact(level: str, count: int, slots: int, context: int, seed: int) -> None:
    source = generator(seed)

    def whole_numbers(low: int, high: int, *size: int) -> Tensor:
        return torch.randint(low, high, size, generator=source, dtype=torch.int32)

    ids, row_slots, last = whole_numbers(-2, 50, count), whole_numbers(-2, slots + 2, count), whole_numbers(0, 9, slots)
    (want,), _ = reference("resolve_ids", ids, row_slots, last)
    assert same_bytes(call("resolve_ids", ids, row_slots, last, level=level, split=singles_backwards).out, want)

    places = torch.randperm((slots + 2) * (context + 2), generator=source)[:count]  # each at most once
    row_slots, positions = (places // (context + 2) - 1).int(), (places % (context + 2) - 1).int()
    ids, history = whole_numbers(0, 50, len(places)), whole_numbers(-5, 0, slots, context)
    _, after = reference("history_store", ids, row_slots, positions, history)
    got = call("history_store", ids, row_slots, positions, history, level=level, split=singles_backwards)
    assert same_bytes(got.args[3], after[3])


# ---- the same bits in every bucket ---------------------------------------------------------------------------------
Args = Callable[[Tensor], tuple[object, ...]]


def _cases(source: Generator) -> dict[str, tuple[Args, int]]:
    """For each op: its arguments for a choice of 256 rows, and how many outputs to compare."""
    n = max(BUCKETS)
    x, heads = torch.randn(n, 200, generator=source), torch.randn(n, 3, 64, generator=source)
    y, weight = torch.randn(n, 200, generator=source), torch.randn(200, generator=source)
    positions = torch.randint(0, 100_000, (n,), generator=source, dtype=torch.int32)
    frequencies = torch.rand(24, generator=source)
    head_weight = torch.randn(64, generator=source)
    index = torch.randint(0, n, (n,), generator=source, dtype=torch.int32)
    return {
        "rms_norm": (lambda p: (x[p], weight, 1e-6), 1),
        "rms_norm of heads": (lambda p: (heads[p], head_weight, 1e-6), 1),
        "rope": (lambda p: (heads[p], positions[p], frequencies, False), 1),
        "rope interleaved": (lambda p: (heads[p], positions[p], frequencies, True), 1),
        "silu_mul": (lambda p: (x[p], y[p]), 1),
        "add": (lambda p: (x[p], y[p]), 1),
        "gather_rows": (lambda p: (x, index[p]), 1),
    }


@pytest.mark.parametrize("case", list(_cases(generator(0))))
def test_row_has_the_same_bits_in_every_bucket(level: str, case: str, seed: int) -> None:
    source = generator(seed)
    args, _ = _cases(source)[case]
    op = case.split(" ")[0]
    whole = call(op, *args(torch.arange(max(BUCKETS))), level=level).out
    for bucket in BUCKETS:
        picked = torch.randperm(max(BUCKETS), generator=source)[:bucket]
        got = call(op, *args(picked), level=level, split=shuffled(bucket), threads=1 + bucket % 2).out
        assert same_bytes(got, whole[picked])


# ---- refusals ------------------------------------------------------------------------------------------------------
def test_columns_with_gaps_are_refused() -> None:
    x, y = torch.ones(4, 8), torch.ones(4, 16)
    assert call("add", x, y[:, :8]).out.shape == (4, 8)
    with pytest.raises(UnsupportedOpError) as refused:
        call("add", x, y[:, ::2])
    assert refused.value.required == "y rows without gaps"


def test_other_types_are_refused() -> None:
    x, weight = torch.ones(4, 8), torch.ones(8)
    assert call("rms_norm", x, weight, 1e-5).out.shape == (4, 8)
    with pytest.raises(UnsupportedOpError) as refused:
        call("rms_norm", x.double(), weight, 1e-5)
    assert "f64[4, 8]" in refused.value.doing


def test_more_rotary_pairs_than_the_kernel_holds_are_refused() -> None:
    positions = torch.zeros(1, dtype=torch.int32)
    assert call("rope", torch.ones(1, 1, 1024), positions, torch.ones(rope.MAX_PAIRS), False).out.shape == (1, 1, 1024)
    with pytest.raises(UnsupportedOpError) as refused:
        call("rope", torch.ones(1, 1, 1026), positions, torch.ones(rope.MAX_PAIRS + 1), False)
    assert refused.value.found == "513 pairs"
