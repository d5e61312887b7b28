"""Layout arithmetic: padding, cuts and chunks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.core.format import (
    BUFFER_ALIGNMENT,
    CHUNK_BYTES,
    MAX_INTEGER,
    MIB,
    REGION_PLACES,
    SLOT_BASE,
    SLOT_SPAN,
    SLOT_STRIDE,
    SLOTS,
    region_base,
    region_span,
)
from heliograph.core.layout import (
    Placer,
    align,
    chunk_count,
    chunk_pieces,
    cuts,
    slice_bytes,
)
from heliograph.core.manifest import Slice
from heliograph.errors import UsageError

GIB = 1 << 30


@given(st.lists(st.integers(0, 5000), max_size=20))
def test_placed_buffers_are_aligned_and_never_touch(sizes: list[int]) -> None:
    """M35, M36"""
    placer = Placer()
    end = -BUFFER_ALIGNMENT
    for size in sizes:
        offset = placer.place(size)
        assert offset % BUFFER_ALIGNMENT == 0
        assert offset >= end + BUFFER_ALIGNMENT
        end = offset + size
    assert placer.end >= end


@given(st.integers(0, 64 * MIB), st.integers(MIB, 20 * MIB))
def test_cuts_cover_the_image_once_and_no_slice_is_longer_than_the_cap(size: int, cap: int) -> None:
    """M43"""
    at = 0
    for offset, length in cuts(size, cap):
        assert offset == at
        assert 0 < length <= cap
        assert offset % (2 * MIB if cap >= 2 * MIB else MIB) == 0
        at += length
    assert at == size


@pytest.mark.parametrize(
    ("cap", "step"),
    [(MIB, MIB), (MIB + 1, MIB), (2 * MIB - 1, MIB), (2 * MIB, 2 * MIB), (3 * MIB, 2 * MIB), (64 * MIB, 64 * MIB),
     (64 * GIB, 64 * GIB), (64 * GIB + 1, 64 * GIB)],
)  # fmt: skip
def test_a_slice_is_the_largest_multiple_of_the_unit_within_the_cap(cap: int, step: int) -> None:
    """M43, R15"""
    assert slice_bytes(cap) == step


def test_a_cap_below_1_mib_or_beyond_what_a_core_can_state_is_refused() -> None:
    """M43"""
    with pytest.raises(UsageError):
        slice_bytes(MIB - 1)
    with pytest.raises(UsageError, match=str(MAX_INTEGER)):
        slice_bytes(MAX_INTEGER + 1)


def slices_of(size: int, cap: int) -> list[Slice]:
    return [Slice(offset=offset, size=length, blob="0" * 64) for offset, length in cuts(size, cap)]


@given(st.integers(1, 40 * MIB), st.sampled_from([MIB, 2 * MIB, 6 * MIB, 64 * MIB]))
def test_the_pieces_of_all_chunks_are_the_bytes_of_all_slices_in_order(size: int, cap: int) -> None:
    """M46"""
    slices = slices_of(size, cap)
    at = 0
    for chunk in range(chunk_count(size)):
        pieces = chunk_pieces(slices, chunk, size)
        assert sum(piece.size for piece in pieces) == min(CHUNK_BYTES, size - chunk * CHUNK_BYTES)
        for piece in pieces:
            assert slices[piece.slice].offset + piece.at == at
            assert piece.at + piece.size <= slices[piece.slice].size
            at += piece.size
    assert at == size


@pytest.mark.parametrize("cap", [MIB, 64 * MIB, 64 * GIB])
def test_offsets_beyond_32_bits_are_exact(cap: int) -> None:
    """R15"""
    size = 130 * GIB + 12345
    slices = slices_of(size, cap)
    last = chunk_count(size) - 1
    pieces = chunk_pieces(slices, last, size)
    start = slices[pieces[0].slice].offset + pieces[0].at
    assert start == last * CHUNK_BYTES > 1 << 32
    assert start + sum(piece.size for piece in pieces) == size


@pytest.mark.parametrize("slot", range(SLOTS))
def test_regions_lie_apart_in_their_slot_and_away_from_likely_integers(slot: int) -> None:
    """M31"""
    end = SLOT_BASE + slot * SLOT_STRIDE
    for role in sorted(REGION_PLACES, key=lambda role: REGION_PLACES[role]):
        base, span = region_base(slot, role), region_span(role)
        assert base >= end
        assert base % (4 * GIB) == 0
        assert (base >> 32) % 64 == 1
        for mapped in (0, 4 * GIB, 251 * GIB):
            assert (base + min(mapped, span - 1) >> 32) % 64 != 0
        end = base + span
    assert end <= SLOT_BASE + slot * SLOT_STRIDE + SLOT_SPAN
    assert SLOT_SPAN <= SLOT_STRIDE


@pytest.mark.parametrize(
    ("value", "unit", "rounded"), [(0, 256, 0), (1, 256, 256), (256, 256, 256), (1 << 40, 3, (1 << 40) + 2)]
)
def test_align_rounds_up(value: int, unit: int, rounded: int) -> None:
    assert align(value, unit) == rounded
