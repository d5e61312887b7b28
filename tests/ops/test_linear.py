"""linear and embedding: values, tails, layouts, and the same bits in every bucket."""

from __future__ import annotations

import gguf
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heliograph.errors import UnsupportedOpError
from heliograph.ops import linear
from heliograph.ops.linear.reference import dequantise

from .harness import BUCKETS, call, examples, reference, same_bytes, shuffled, singles_backwards
from .packed import LAYOUT_NAMES, PACKED, generator, random_weight

LAYOUTS = st.sampled_from(LAYOUT_NAMES)


@pytest.mark.parametrize("layout", PACKED)
def test_packed_weights_have_the_values_that_gguf_gives(layout: str, seed: int) -> None:
    weight = random_weight(layout, 7, 96, generator(seed))
    kind = {"q8_0": gguf.GGMLQuantizationType.Q8_0, "q4_1": gguf.GGMLQuantizationType.Q4_1}[layout]
    assert same_bytes(dequantise(weight, layout), torch.from_numpy(gguf.quants.dequantize(weight.numpy(), kind)))


@examples(60)
@given(
    layout=LAYOUTS, rows=st.integers(0, 60), depth=st.integers(0, 100), outputs=st.integers(1, 40), bias=st.booleans(),
    gap=st.integers(0, 3), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_linear_is_within_its_tolerance_for_all_shapes(
    level: str, layout: str, rows: int, depth: int, outputs: int, bias: bool, gap: int, seed: int
) -> None:
    source = generator(seed)
    columns = depth // 32 * 32 if layout in PACKED else depth
    x = torch.randn(rows, columns + gap, generator=source)[:, :columns]
    weight = random_weight(layout, outputs, columns, source)
    b = torch.randn(outputs, generator=source) if bias else None
    got = call("linear", x, weight, b, layout, outputs, level=level).out
    exact = dequantise(weight, layout).double()
    terms = x.double().abs() @ exact.abs().T + (0 if b is None else b.abs())
    want = x.double() @ exact.T + (0 if b is None else b)
    assert ((got - want).abs() <= linear.ERROR * terms).all()


@pytest.mark.parametrize("layout", LAYOUT_NAMES)
@pytest.mark.parametrize(("depth", "outputs"), [(32, 5), (704, 20), (1536, 9)])
def test_linear_row_has_the_same_bits_in_every_bucket(
    level: str, layout: str, depth: int, outputs: int, seed: int
) -> None:
    source = generator(seed)
    x = torch.randn(max(BUCKETS), depth, generator=source)
    weight, bias = random_weight(layout, outputs, depth, source), torch.randn(outputs, generator=source)
    whole = call("linear", x, weight, bias, layout, outputs, level=level).out
    for bucket in BUCKETS:
        picked = torch.randperm(len(x), generator=source)[:bucket]
        result = call("linear", x[picked], weight, bias, layout, outputs, level=level, split=shuffled(bucket))
        assert same_bytes(result.out, whole[picked])


@pytest.mark.parametrize("rows", [3, 50])
def test_linear_does_not_depend_on_how_its_grid_is_cut(level: str, rows: int, seed: int) -> None:
    source = generator(seed)
    x, weight = torch.randn(rows, 200, generator=source), torch.randn(70, 200, generator=source)
    want = call("linear", x, weight, None, "f32", 70, level=level).out
    for split in (singles_backwards, shuffled(1), shuffled(2)):
        assert same_bytes(call("linear", x, weight, None, "f32", 70, level=level, split=split).out, want)
    assert same_bytes(
        call("linear", x, weight, None, "f32", 70, level=level, split=singles_backwards, threads=8).out, want
    )


@pytest.mark.parametrize("layout", LAYOUT_NAMES)
def test_linear_row_has_the_same_bits_with_all_depths_of_a_tile(level: str, layout: str, seed: int) -> None:
    """Depths around the tile of decoded weights, between which sums wait in memory, and of the scales read at once."""
    source = generator(seed)
    for depth in (608, 640, 672, 1280, 1312, 2016, 2048, 2080):
        x, weight = torch.randn(9, depth, generator=source), random_weight(layout, 11, depth, source)
        alone = torch.cat([call("linear", row[None], weight, None, layout, 11, level=level).out for row in x])
        for rows in (3, 5, 7, 9):  # forms that differ in how many rows and lanes are computed together
            assert same_bytes(call("linear", x[:rows], weight, None, layout, 11, level=level).out, alone[:rows])


def test_packed_rows_of_broken_blocks_are_refused() -> None:
    x, weight = torch.ones(2, 64), torch.zeros(4, 40, dtype=torch.uint8)
    assert call("linear", x, weight, None, "q4_1", 4).out.shape == (2, 4)
    with pytest.raises(UnsupportedOpError) as refused:
        call("linear", torch.ones(2, 65), weight, None, "q4_1", 4)
    assert "u8[4, 40]" in refused.value.doing
    assert "whole blocks of 32" in refused.value.required


def test_unknown_layout_is_refused() -> None:
    with pytest.raises(UnsupportedOpError) as refused:
        call("linear", torch.ones(2, 64), torch.zeros(4, 40, dtype=torch.uint8), None, "q2_k", 4)
    assert "q2_k" in refused.value.found


@examples(40)
@given(
    layout=LAYOUTS, tokens=st.integers(0, 20), dim=st.integers(0, 100), entries=st.integers(1, 30),
    seed=st.integers(0, 2**31),
)  # fmt: skip
def test_embedding_gives_the_weights_exactly(
    level: str, layout: str, tokens: int, dim: int, entries: int, seed: int
) -> None:
    source = generator(seed)
    columns = dim // 32 * 32 if layout in PACKED else dim
    weight = random_weight(layout, entries, columns, source)
    ids = torch.randint(-2, entries + 2, (tokens,), generator=source, dtype=torch.int32)
    ids[:1] = 2**31 - 1
    got = call("embedding", ids, weight, layout, columns, level=level, split=singles_backwards).out
    known = (ids >= 0) & (ids < entries)
    assert same_bytes(got[known], dequantise(weight, layout)[ids[known].long()])
    assert (got[~known] == 0).all()
    (want,), _ = reference("embedding", ids, weight, layout, columns)
    assert same_bytes(got, want)
