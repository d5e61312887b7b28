"""Weights into a device of its own memory: read into pinned memory, checked there, copied from there. And the way back,
for whoever looks at much of a device's memory.

Each staging thread has two slots of a chunk: while the device copies one, the next chunk is read into the other. Eight
threads hold 64 MiB, which is enough to keep the bus busy; pinning costs about 0.4 ms a MiB.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from heliograph._native import CudaDevice, Reservation
from heliograph.core.format import CHUNK_BYTES
from heliograph.errors import DeviceFaultError

SLOTS: Final = 2  # of each thread
PIECE_BYTES: Final = CHUNK_BYTES  # of what is read back


class Pinned:
    """The weights region of a CUDA device, as ``Staging`` fills it."""

    def __init__(self, device: CudaDevice, region: Reservation) -> None:
        self._device = device
        self._region = region

    def lane(self) -> PinnedLane:
        return PinnedLane(self._device, self._region)

    def release(self) -> None: ...


class PinnedLane:
    """One thread's slots, stream and events. OutOfMemoryError if nothing can be pinned."""

    def __init__(self, device: CudaDevice, region: Reservation) -> None:
        self._region = region
        self._stream = device.create_stream()
        self._copied = [device.create_event() for _ in range(SLOTS)]
        self._memory = device.pinned(SLOTS * CHUNK_BYTES)
        self._slot = 0

    def open(self, offset: int, size: int) -> memoryview:
        """Waits until the slot's last chunk has been copied."""
        self._copied[self._slot].synchronize()
        at = self._slot * CHUNK_BYTES
        with memoryview(self._memory) as whole:
            return whole[at : at + size]

    def sent(self, offset: int, size: int) -> None:
        self._region.write_async(offset, self._memory, self._slot * CHUNK_BYTES, size, self._stream)
        self._stream.record(self._copied[self._slot])
        self._slot = (self._slot + 1) % SLOTS

    def close(self) -> None:
        try:
            self._stream.synchronize()
        finally:
            self._stream.close()
            self._memory.close()


class PinnedReader:
    """Device memory as the host looks at it: piece by piece, the next one being copied meanwhile. For one caller at a
    time, when nothing writes to the memory."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._slots: _Slots | None = None  # from the first large read on

    def pieces(self, region: Reservation, offset: int, size: int) -> Iterator[memoryview]:
        """Copies of ``size`` bytes, in order; each is valid until the next one is taken. OutOfMemoryError if nothing
        can be pinned."""
        if size <= PIECE_BYTES:
            with memoryview(region.read(offset, size)) as all_of_it:
                yield all_of_it
            return
        slots = self._slots = self._slots or _Slots(self._device)
        lengths = [min(PIECE_BYTES, size - at) for at in range(0, size, PIECE_BYTES)]
        for number in range(SLOTS - 1):
            slots.fetch(number, region, offset + number * PIECE_BYTES, lengths[number])
        for number, length in enumerate(lengths):
            ahead = number + SLOTS - 1
            if ahead < len(lengths):
                slots.fetch(ahead % SLOTS, region, offset + ahead * PIECE_BYTES, lengths[ahead])
            with slots.content(number % SLOTS, length) as piece:
                yield piece

    def close(self) -> None:
        """Gives the pinned memory back; another read takes it anew. Idempotent."""
        slots, self._slots = self._slots, None
        if slots is not None:
            slots.close()


class _Slots:
    """Pinned memory for pieces, and the stream that fills it."""

    def __init__(self, device: CudaDevice) -> None:
        self._stream = device.create_stream()
        self._copied = [device.create_event() for _ in range(SLOTS)]
        self._memory = device.pinned(SLOTS * PIECE_BYTES)

    def fetch(self, slot: int, region: Reservation, offset: int, size: int) -> None:
        region.read_async(offset, self._memory, slot * PIECE_BYTES, size, self._stream)
        self._stream.record(self._copied[slot])

    def content(self, slot: int, size: int) -> memoryview:
        """Waits until the slot's piece is there."""
        self._copied[slot].synchronize()
        with memoryview(self._memory) as whole:
            return whole[slot * PIECE_BYTES : slot * PIECE_BYTES + size]

    def close(self) -> None:
        try:
            with suppress(DeviceFaultError):  # nothing is copied any more
                self._stream.synchronize()
        finally:
            self._stream.close()
            self._memory.close()
