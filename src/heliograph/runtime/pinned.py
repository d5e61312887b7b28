"""Weights into a device of its own memory: read into pinned memory, checked there, copied from there.

Each staging thread has two slots of a chunk: while the device copies one, the next chunk is read into the other. Eight
threads hold 64 MiB, which is enough to keep the bus busy; pinning costs about 0.4 ms a MiB.
"""

from __future__ import annotations

from typing import Final

from heliograph._native import CudaDevice, Reservation
from heliograph.core.format import CHUNK_BYTES

SLOTS: Final = 2  # of each thread


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
