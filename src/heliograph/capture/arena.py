"""Memory of a recording: which range of a region a tensor gets, and the regions themselves on a device.

``Ranges`` decides (pure arithmetic, the same answer for the same order of calls); ``Arena`` acts.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType

from heliograph._native import Device, Reservation
from heliograph.core.format import region_base, region_span
from heliograph.core.layout import align, padded
from heliograph.errors import OutOfMemoryError, UsageError


class Ranges:
    """Hands out ranges of a span, lowest free offset first, and takes them back.

    ``peak`` is the size the span needs. No two ranges that are out at the same time touch.
    """

    def __init__(self) -> None:
        self.peak = 0
        self._end = 0
        self._taken: dict[int, int] = {}
        self._holes: list[tuple[int, int]] = []  # (offset, size), ascending, never adjacent

    def take(self, size: int) -> int:
        need = padded(size)
        for i, (offset, room) in enumerate(self._holes):
            if room >= need:
                if room == need:
                    del self._holes[i]
                else:
                    self._holes[i] = (offset + need, room - need)
                break
        else:
            offset = self._end
            if self._holes and sum(self._holes[-1]) == self._end:
                offset = self._holes.pop()[0]
            self._end = offset + need
            self.peak = max(self.peak, self._end)
        self._taken[offset] = need
        return offset

    def give(self, offset: int) -> None:
        start, size = offset, self._taken.pop(offset)
        i = bisect.bisect_left(self._holes, (start, 0))
        if i < len(self._holes) and start + size == self._holes[i][0]:
            size += self._holes.pop(i)[1]
        if i and sum(self._holes[i - 1]) == start:
            start, before = self._holes.pop(i - 1)
            size += before
            i -= 1
        self._holes.insert(i, (start, size))

    @property
    def taken(self) -> int:
        """Ranges that are out."""
        return len(self._taken)


def check_span(role: str, size: int) -> None:
    """OutOfMemoryError if a region has no room for so many bytes."""
    if size > region_span(role):
        raise OutOfMemoryError(
            f"placing the {role} region",
            found=f"{size} bytes",
            required=f"at most {region_span(role)} bytes",
            hint="capture a smaller model, or fewer or smaller buckets",
        )


@dataclass(frozen=True, slots=True, eq=False)
class RegionPool:
    """A region as a pool: memory that graphs may point into, and the object that keeps it."""

    name: str
    owner: object
    ranges: tuple[tuple[int, int], ...]  # (address, bytes)


@dataclass(frozen=True, eq=False)
class Block:
    """The memory of a region as it is now. It lives as long as the arena holds the region."""

    role: str
    reservation: Reservation
    size: int
    dtype: str = "u8"

    @property
    def address(self) -> int:
        return self.reservation.address


class Arena:
    """The regions of a slot on a device: reserved at their addresses and backed with zeroed memory.

    Closed by its own ``close`` or by leaving a ``with`` block; ``close`` raises while views are held.
    """

    def __init__(self, device: Device, slot: int, sizes: Mapping[str, int]) -> None:
        self.device = device
        self.slot = slot
        self.sizes = {role: size for role, size in sizes.items() if size}
        self.blocks: dict[str, Block] = {}
        try:
            for role, size in self.sizes.items():
                self._back(role, size)
        except BaseException:
            self.close()
            raise

    @classmethod
    def over(cls, device: Device, slot: int, placed: Mapping[str, tuple[Reservation, int]]) -> Arena:
        """An arena of regions that were reserved and backed elsewhere: role to reservation and bytes in use."""
        arena = cls(device, slot, {})
        for role, (reservation, size) in placed.items():
            if size:
                arena.sizes[role] = size
                arena.blocks[role] = Block(role, reservation, size)
        return arena

    def _back(self, role: str, size: int) -> None:
        check_span(role, size)
        reservation = self.device.reserve(region_base(self.slot, role), region_span(role))
        self.blocks[role] = Block(role, reservation, size)
        reservation.map(0, align(size, self.device.granularity))

    def region(self, role: str) -> Reservation:
        block = self.blocks.get(role)
        if block is None:
            raise UsageError(
                f"using the {role} region",
                found="no such region, or its memory was given back",
                required="a recording that holds its memory",
                hint="use the recording before its memory is given back",
            )
        return block.reservation

    def pools(self) -> tuple[RegionPool, ...]:
        """One pool a region, each kept by its reservation."""
        return tuple(
            RegionPool(role, block.reservation, ((block.address, block.size),)) for role, block in self.blocks.items()
        )

    @property
    def mapped_bytes(self) -> int:
        return sum(block.reservation.mapped_bytes for block in self.blocks.values())

    def close(self) -> None:
        for role in reversed(list(self.blocks)):
            self.blocks[role].reservation.close()
            del self.blocks[role]

    def __enter__(self) -> Arena:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
