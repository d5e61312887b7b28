"""Weights into a CUDA device: what was checked in pinned memory is what the device holds; and what of a device is read
back. Through the fake driver."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from blake3 import blake3

from fake_cuda.control import FakeCuda
from heliograph._native import CudaDevice, Reservation
from heliograph.core.format import CHUNK_BYTES, MIB, region_base
from heliograph.errors import DeviceError, TamperedError
from heliograph.runtime.pinned import PIECE_BYTES, SLOTS, Pinned, PinnedReader
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


# ---- reading back ------------------------------------------------------------------------------------------------
@pytest.fixture
def filled(region: Region) -> Region:
    region.memory.unmap(0, region.memory.mapped_bytes)
    region.memory.map(0, 16 * MIB)
    region.memory.write(0, random.Random(3).randbytes(16 * MIB))
    return region


BORDERS = [1, *(PIECE_BYTES * pieces + more for pieces in (1, 2, 3) for more in (-1, 0, 1))]


@pytest.mark.parametrize("size", BORDERS)
@pytest.mark.parametrize("offset", [0, 257])
def test_pieces_are_the_memory_in_order(filled: Region, offset: int, size: int) -> None:
    reader = PinnedReader(filled.device)
    wanted = filled.memory.read(offset, size)
    lengths, digest = [], blake3()
    for piece in reader.pieces(filled.memory, offset, size):
        lengths.append(len(piece))
        digest.update(piece)
    assert digest.digest() == blake3(wanted).digest()
    assert lengths == [min(PIECE_BYTES, size - at) for at in range(0, size, PIECE_BYTES)]
    reader.close()
    assert filled.device.counters()["pinned_bytes"] == 0


def test_little_is_read_without_pinned_memory_and_much_pins_once(filled: Region) -> None:
    reader = PinnedReader(filled.device)
    assert [bytes(piece) for piece in reader.pieces(filled.memory, 5, 9)] == [filled.memory.read(5, 9)]
    assert filled.device.counters()["pinned_bytes"] == 0
    for _ in range(3):
        assert sum(map(len, reader.pieces(filled.memory, 0, 9 * MIB))) == 9 * MIB
        assert filled.device.counters()["pinned_bytes"] == SLOTS * PIECE_BYTES
    reader.close()
    reader.close()
    assert filled.device.counters()["pinned_bytes"] == 0


def test_a_reader_that_was_left_midway_starts_afresh(filled: Region) -> None:
    reader = PinnedReader(filled.device)
    left = reader.pieces(filled.memory, 0, 12 * MIB)
    next(left)
    left.close()
    again = b"".join(map(bytes, reader.pieces(filled.memory, MIB, 9 * MIB)))
    assert again == filled.memory.read(MIB, 9 * MIB)
    reader.close()


@pytest.mark.parametrize("call", ["cuMemHostAlloc", "cuMemcpyDtoHAsync", "cuEventSynchronize"])
def test_a_driver_that_fails_while_reading_leaves_nothing(filled: Region, fake_cuda: FakeCuda, call: str) -> None:
    reader = PinnedReader(filled.device)
    fake_cuda.fail(call, "CUDA_ERROR_OUT_OF_MEMORY", nth=1)
    with pytest.raises(DeviceError):
        list(reader.pieces(filled.memory, 0, 9 * MIB))
    fake_cuda.heal(call)
    assert sum(map(len, reader.pieces(filled.memory, 0, 9 * MIB))) == 9 * MIB
    reader.close()
