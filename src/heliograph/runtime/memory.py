"""The regions of a core in this process: reserved at their addresses, mapped as planned, protected."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from weakref import WeakSet

import msgspec

from heliograph._native import CudaDevice, Device, Reservation
from heliograph.core.manifest import Core
from heliograph.errors import AddressTakenError, UsageError
from heliograph.runtime.plan import MemoryPlan

if TYPE_CHECKING:
    from heliograph.runtime.pinned import PinnedReader

Bytes = bytes | bytearray | memoryview
READ_ONLY = ("weights", "constants")  # of a loaded program


class _Claim(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """Ranges of addresses that a loaded core holds."""

    name: str
    slot: int
    ranges: tuple[tuple[int, int], ...]


# Addresses are shared by the whole process, whatever devices are open in it, so who holds which is known here once.
# A claim lives as long as its memory: one that is dropped without being closed gives its addresses back as well.
_claims: WeakSet[_Claim] = WeakSet()
_claims_lock = threading.Lock()


def _claim(name: str, core: Core) -> _Claim:
    ranges = tuple((int(region.base, 16), int(region.base, 16) + region.span) for region in core.regions)
    claim = _Claim(name, core.slot, ranges)
    with _claims_lock:
        for other in _claims:
            for first, end in other.ranges:
                if any(begin < end and first < stop for begin, stop in ranges):
                    raise AddressTakenError(
                        f"reserving the addresses of {name}",
                        found=f"{first:#x} to {end:#x} held by {other.name}, loaded in slot {other.slot}",
                        required=f"the ranges of slot {core.slot} free",
                        hint="close the other core, or capture one of the two in another slot",
                    )
        _claims.add(claim)
    return claim


class Memory:
    """Owns one reservation a region. Not before ``map`` is there memory behind the addresses.

    Closing gives everything back and may be called twice. A view that the caller still holds stops it, and then
    everything is as it was.
    """

    def __init__(self, device: Device, core: Core, name: str) -> None:
        """Reserves every region of the core, or none: AddressTakenError names what is in the way."""
        self._claim = _claim(name, core)
        self._in_place = device.kind == "host"
        self._mapped: dict[str, int] = {}
        self._read_only: set[str] = set()
        self._reservations: dict[str, Reservation] = {}
        self._reader: PinnedReader | None = None
        if isinstance(device, CudaDevice):
            from heliograph.runtime.pinned import PinnedReader  # noqa: PLC0415 - a host pays for nothing of it

            self._reader = PinnedReader(device)
        try:
            for region in core.regions:
                self._reservations[region.role] = device.reserve(int(region.base, 16), region.span)
        except BaseException:
            self.close()
            raise

    def map(self, plan: MemoryPlan) -> None:
        """Backs the planned part of every region with zeroed memory."""
        for region in plan.regions:
            if region.mapped:
                self._reservations[region.role].map(0, region.mapped)
                self._mapped[region.role] = region.mapped

    def protect(self, roles: Sequence[str] = READ_ONLY) -> None:
        """Makes regions read-only: a kernel that writes there faults instead of changing the model."""
        for role in roles:
            if self._mapped.get(role):
                self._reservations[role].protect(0, self._mapped[role], writable=False)
                self._read_only.add(role)

    @property
    def mapped_bytes(self) -> int:
        return sum(self._mapped.values())

    def mapped(self, role: str) -> int:
        """Bytes of a region that have memory; 0 for a region that the core does not have."""
        return self._mapped.get(role, 0)

    def view(self, role: str, offset: int, size: int) -> memoryview:
        """The memory itself. Holding the view keeps the region from being closed. UsageError where the host cannot
        address the device's memory."""
        return self._at(role, offset, size).view(offset, size)

    def pieces(self, role: str, offset: int, size: int) -> Iterator[memoryview]:
        """The bytes to look at now, in order: the memory itself or, where the host cannot address it, copies. Each is
        valid until the next one is taken. For one caller at a time."""
        region = self._at(role, offset, size)
        if self._reader is not None:
            yield from self._reader.pieces(region, offset, size)
        else:
            with region.view(offset, size) as view:
                yield view

    def region(self, role: str) -> Reservation:
        """The reservation behind a region, for those who fill it as a whole."""
        return self._reservations[role]

    def read(self, role: str, offset: int, size: int) -> bytes:
        return self._at(role, offset, size).read(offset, size)

    def write(self, role: str, offset: int, data: Bytes) -> None:
        with memoryview(data) as view:
            self._at(role, offset, view.nbytes).write(offset, data)

    def fill(self, role: str, offset: int, value: int, size: int) -> None:
        if size:
            self._at(role, offset, size).fill(offset, value, size)

    def _at(self, role: str, offset: int, size: int) -> Reservation:
        if role not in self._mapped or offset < 0 or size < 0 or offset + size > self._mapped[role]:
            raise UsageError(
                f"addressing the region {role!r}",
                found=f"bytes {offset} to {offset + size}",
                required=f"a range inside the {self._mapped.get(role, 0)} bytes that are mapped",
                hint="take offsets and sizes from the core's buffers",
            )
        return self._reservations[role]

    def close(self) -> None:
        """Unmaps and unreserves everything, or nothing: UsageError while the caller holds a view."""
        if self._in_place:
            self._refuse_held_views()
        if self._reader is not None:
            self._reader.close()
        while self._reservations:
            role, reservation = next(reversed(self._reservations.items()))
            reservation.close()
            del self._reservations[role]
            self._mapped.pop(role, None)
        with _claims_lock:
            _claims.discard(self._claim)

    def _refuse_held_views(self) -> None:
        """A region with a writable view cannot be made read-only, so this finds all of them before anything is gone."""
        protected = []
        try:
            for role, size in self._mapped.items():
                self._reservations[role].protect(0, size, writable=False)
                protected.append(role)
        except UsageError:
            for role in protected:
                if role not in self._read_only:
                    self._reservations[role].protect(0, self._mapped[role], writable=True)
            raise
