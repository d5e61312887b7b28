"""Each device with the two kernels that lifetime tests need: ``spin`` takes a stated time, ``count`` counts blocks.

Also imported by the scripts that tests run in processes of their own.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

from heliograph._native import CudaDevice, Device, Reservation, SealedImage, Stream
from heliograph.core.format import region_base
from heliograph.device.host import kernel_image, open_host

SPAN = 64 << 20
PTX = Path(__file__).parent / "device" / "rig.ptx"


class MappedPool:
    """A pool over a reservation of which one granule is mapped, as an arena hands it in."""

    def __init__(self, name: str, owner: Reservation | None, ranges: tuple[tuple[int, int], ...]) -> None:
        self.name = name
        self.owner = owner
        self.ranges = ranges

    @property
    def address(self) -> int:
        return self.ranges[0][0]


class Rig:
    def __init__(self, device: Device, slot: int = 0, image: bytes | None = None) -> None:
        self.device = device
        self._reservations: list[Reservation] = []
        module = device.load_module(SealedImage("probe", image or kernel_image("generic", "probe")))
        self._spin, self._count = module.function("spin"), module.function("count")
        self.pool = self.make_pool("main", slot)
        self.stream = device.create_stream()

    def make_pool(self, name: str, slot: int = 0) -> MappedPool:
        """Memory in the io region of a slot."""
        reservation = self.device.reserve(region_base(slot, "io"), SPAN)
        size = self.device.granularity
        reservation.map(0, size)
        self._reservations.append(reservation)
        return MappedPool(name, reservation, ((reservation.address, size),))

    def spin(self, stream: Stream, milliseconds: int, pool: MappedPool | None = None) -> None:
        """Submits a kernel that takes this long and then adds 1 to the first word of the pool."""
        stream.launch(self._spin, (1, 1, 1), struct.pack("<QQ", (pool or self.pool).address, milliseconds * 1000))

    def count(self, stream: Stream, address: int, blocks: int = 1) -> None:
        stream.launch(self._count, (blocks, 1, 1), struct.pack("<Q", address))

    def word(self, pool: MappedPool | None = None, at: int = 0) -> int:
        owner = (pool or self.pool).owner
        assert owner is not None
        return int.from_bytes(owner.read(at, 8), "little")

    def close(self) -> None:
        """Lets go of everything, although a failed test's or an expected error's traceback may still lead here."""
        self.device.close()
        for reservation in self._reservations:
            reservation.close()
        vars(self).clear()

    def counter(self, name: str) -> int:
        return self.device.counters()[name]


def host_rig() -> Rig:
    return Rig(open_host(workers=2))


def cuda_rig() -> Rig:
    """Through the fake driver, which runs host kernels."""
    return Rig(CudaDevice())


def gpu_rig() -> Rig:
    return Rig(CudaDevice(), image=PTX.read_bytes())


RIGS: dict[str, Callable[[], Rig]] = {"host": host_rig, "fake-cuda": cuda_rig, "gpu": gpu_rig}
