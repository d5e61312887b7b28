"""A device with the probe kernels (native/host/kernels/probe.cpp) and some memory: what the conformance suite runs on.

``DEVICES`` is the list of devices; a test takes them all through the fixture ``probe``. A test that cannot run on one
of them says so with ``@pytest.mark.excludes("cuda", reason=...)``, or "fake-cuda" where it is the fake driver that
cannot. docs/conformance.md lists them. Also imported by scripts in processes of their own.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from heliograph._native import (
    CudaDevice,
    Device,
    Executable,
    Function,
    HostDevice,
    Reservation,
    SealedImage,
    Stream,
    Template,
)
from heliograph.device.host import kernel_image

BASE = 0x1601_0000_0000  # between two slots of core.format
SPAN = 1 << 30
MAPPED = 4 << 20
PTX = Path(__file__).parent / "probe.ptx"


def probe_image() -> bytes:
    return kernel_image("generic", "probe")


class Probe:
    """The device, a module, and 4 MiB of zeroed memory that is given out piece by piece."""

    def __init__(self, device: Device, base: int = BASE, image: bytes | None = None) -> None:
        self.device = device
        self.image = image or probe_image()
        self.module = device.load_module(SealedImage("probe", self.image))
        self.memory: Reservation = device.reserve(base, SPAN)
        self.memory.map(0, MAPPED)
        self._used = 0

    def function(self, name: str) -> Function:
        return self.module.function(name)

    def take(self, size: int = 8) -> int:
        """The address of fresh zeroed memory, a cache line of its own."""
        at = self._used
        self._used += (size + 63) // 64 * 64
        assert self._used <= MAPPED
        return self.memory.address + at

    def read(self, address: int, size: int) -> bytes:
        return self.memory.read(address - self.memory.address, size)

    def write(self, address: int, data: bytes) -> None:
        self.memory.write(address - self.memory.address, data)

    def word(self, address: int) -> int:
        return int.from_bytes(self.read(address, 8), "little")

    def words(self, address: int, count: int) -> tuple[int, ...]:
        """32-bit ones."""
        return struct.unpack(f"<{count}I", self.read(address, 4 * count))

    def add(self, template: Template, name: str, *values: int, blocks: int = 1, after: Sequence[int] = ()) -> int:
        return template.add_kernel(self.function(name), (blocks, 1, 1), pack(*values), after)

    def launch(self, stream: Stream, name: str, *values: int, blocks: int = 1) -> None:
        stream.launch(self.function(name), (blocks, 1, 1), pack(*values))

    def run(self, executable: Executable, times: int = 1) -> None:
        stream = self.device.create_stream()
        for _ in range(times):
            executable.launch(stream)
        stream.synchronize()

    def counter(self, name: str) -> int:
        return self.device.counters()[name]

    def close(self) -> None:
        """Lets go of everything that the device has: pytest keeps this object for longer."""
        if self.device.alive:
            self.device.synchronize()
        self.memory.close()
        self.device.close()
        vars(self).clear()


def pack(*values: int) -> bytes:
    """Parameters of the probe kernels: pointers and 64-bit integers."""
    return struct.pack(f"<{len(values)}Q", *values)


FOLD = 6364136223846793005


def folded(start: int, *values: int) -> int:
    """What the ``fold`` kernel leaves in its cell after these values, in this order."""
    for value in values:
        start = (start * FOLD + value) & (1 << 64) - 1
    return start


def host_probe() -> Probe:
    return Probe(HostDevice(workers=2))


def cuda_probe() -> Probe:
    """Through whatever library HELIOGRAPH_LIBCUDA names."""
    return Probe(CudaDevice())


def gpu_probe() -> Probe:
    return Probe(CudaDevice(), image=PTX.read_bytes())


DEVICES: dict[str, Callable[[], Probe]] = {"host": host_probe, "fake-cuda": cuda_probe, "gpu": gpu_probe}
