"""Where things lie: buffers in regions, slices and chunks of the weights image. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from heliograph.core.format import BUFFER_ALIGNMENT, CHUNK_BYTES, MAX_INTEGER, MIB, MIN_CAP, SLICE_ALIGNMENT
from heliograph.core.manifest import Buffer, Region, Slice
from heliograph.errors import UsageError


def align(value: int, unit: int) -> int:
    """``value`` rounded up to a multiple of ``unit``."""
    return -(-value // unit) * unit


def padded(size: int) -> int:
    """What a buffer takes: its bytes, then at least BUFFER_ALIGNMENT of padding, so that buffers never touch."""
    return align(size + BUFFER_ALIGNMENT, BUFFER_ALIGNMENT)


class Placer(msgspec.Struct):
    """Places buffers one behind the other in a region."""

    end: int = 0  # bytes taken so far, padding included

    def place(self, size: int) -> int:
        """The offset of a buffer of ``size`` bytes."""
        offset = self.end
        self.end = offset + padded(size)
        return offset


def addresses(regions: Iterable[Region], buffers: Iterable[Buffer]) -> list[int]:
    """The address of each buffer."""
    bases = {region.role: int(region.base, 16) for region in regions}
    return [bases[buffer.role] + buffer.offset for buffer in buffers]


def slice_unit(cap: int) -> int:
    """Weight files are cut at multiples of this: 2 MiB, or 1 MiB when the cap is less than 2 MiB."""
    if not MIN_CAP <= cap <= MAX_INTEGER:
        raise UsageError(
            "cutting weights",
            found=f"a cap of {cap} bytes",
            required=f"at least 1 MiB, at most {MAX_INTEGER} bytes",
            hint="for example --cap 64GiB",
        )
    return SLICE_ALIGNMENT if cap >= SLICE_ALIGNMENT else MIB


def slice_bytes(cap: int) -> int:
    """The length of every slice but the last: the largest multiple of the unit within the cap."""
    unit = slice_unit(cap)
    return cap // unit * unit


def cuts(size: int, cap: int) -> list[tuple[int, int]]:
    """(offset, size) of each slice of an image of ``size`` bytes."""
    step = slice_bytes(cap)
    return [(offset, min(step, size - offset)) for offset in range(0, size, step)]


def chunk_count(size: int) -> int:
    return -(-size // CHUNK_BYTES)


class Piece(msgspec.Struct, frozen=True):
    """Part of a chunk that lies in one slice."""

    slice: int  # index
    at: int  # offset in the slice's file
    size: int


def chunk_pieces(slices: Sequence[Slice], chunk: int, size: int) -> list[Piece]:
    """Where the bytes of a chunk of an image of ``size`` bytes lie, in order. ``slices`` are checked slices."""
    start, end = chunk * CHUNK_BYTES, min((chunk + 1) * CHUNK_BYTES, size)
    step = slices[0].size  # every slice but the last has this length
    pieces = []
    for index in range(start // step, -(-end // step)):
        first = max(start, index * step)
        last = min(end, index * step + slices[index].size)
        pieces.append(Piece(index, first - index * step, last - first))
    return pieces
