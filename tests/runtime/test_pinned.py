"""Weights into a CUDA device: what was checked in pinned memory is what the device holds. Through the fake driver."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_cuda.control import FakeCuda
from heliograph._native import CudaDevice, Reservation
from heliograph.core.format import CHUNK_BYTES, MIB, region_base
from heliograph.errors import DeviceError, TamperedError
from heliograph.runtime.pinned import Pinned
from heliograph.runtime.staging import Staging
from runtime.test_staging import IMAGE, Files

SPAN = 64 * MIB


class Region:
    """A device with a weights region of which as much is mapped as the image takes."""

    def __init__(self) -> None:
        self.device = CudaDevice()
        self.memory: Reservation = self.device.reserve(region_base(0, "weights"), SPAN)
        unit = self.device.granularity
        self.memory.map(0, -(-len(IMAGE) // unit) * unit)

    def target(self) -> Pinned:
        return Pinned(self.device, self.memory)

    def close(self) -> None:
        self.memory.close()
        self.device.close()
        vars(self).clear()  # a failed test's or an expected error's traceback may still lead here


@pytest.fixture
def region(fake_cuda: FakeCuda) -> Iterator[Region]:
    made = Region()
    yield made
    made.close()


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("cap", [MIB, 6 * MIB, 64 << 30])
@pytest.mark.parametrize("check", [True, False])
def test_every_byte_lands_on_the_device(tmp_path: Path, region: Region, threads: int, cap: int, check: bool) -> None:
    files = Files(tmp_path, IMAGE, cap)
    staging = Staging(files, files.weights, region.target(), threads=threads, check=check)
    staging.start()
    done = staging.finish()
    assert region.memory.read(0, len(IMAGE)) == IMAGE
    assert (done.bytes_read, done.threads) == (len(IMAGE), min(threads, 3))
    files.close()


def test_a_flipped_bit_is_refused_before_it_is_copied(tmp_path: Path, region: Region) -> None:
    files = Files(tmp_path, IMAGE, 64 << 30)
    path = tmp_path / "0"
    data = bytearray(path.read_bytes())
    data[5 * MIB] ^= 1
    path.write_bytes(data)
    staging = Staging(files, files.weights, region.target(), threads=1)
    staging.start()
    with pytest.raises(TamperedError):
        staging.finish()
    assert region.memory.read(0, CHUNK_BYTES) == IMAGE[:CHUNK_BYTES]
    assert not any(region.memory.read(CHUNK_BYTES, CHUNK_BYTES))
    files.close()


def test_what_was_checked_is_what_is_copied(tmp_path: Path, region: Region) -> None:
    """The file changes after its bytes were read and before they are on the device."""

    class Changing(Files):
        def read_chunk(self, chunk: int, into: memoryview) -> int:
            done = super().read_chunk(chunk, into)
            (tmp_path / "0").write_bytes(bytes(len(IMAGE)))
            return done

    files = Changing(tmp_path, IMAGE[:CHUNK_BYTES], 64 << 30)
    staging = Staging(files, files.weights, region.target(), threads=1)
    staging.start()
    staging.finish()
    assert region.memory.read(0, CHUNK_BYTES) == IMAGE[:CHUNK_BYTES]
    files.close()


@pytest.mark.parametrize("call", ["cuMemHostAlloc", "cuMemcpyHtoDAsync", "cuStreamSynchronize"])
def test_a_driver_that_fails_ends_the_pass(tmp_path: Path, region: Region, fake_cuda: FakeCuda, call: str) -> None:
    files = Files(tmp_path, IMAGE, 64 << 30)
    staging = Staging(files, files.weights, region.target(), threads=2)
    fake_cuda.fail(call, "CUDA_ERROR_OUT_OF_MEMORY", nth=2)
    staging.start()
    with pytest.raises(DeviceError):
        staging.finish()
    fake_cuda.heal(call)
    again = Staging(files, files.weights, region.target(), threads=2)
    again.start()
    again.finish()
    assert region.memory.read(0, len(IMAGE)) == IMAGE
    files.close()


def test_abandoning_waits_for_the_threads(tmp_path: Path, region: Region) -> None:
    files = Files(tmp_path, IMAGE, 64 << 30)
    staging = Staging(files, files.weights, region.target(), threads=2)
    staging.start()
    staging.abandon()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("staging")]
    files.close()
