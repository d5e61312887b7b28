"""Pinned memory, and copies in stream order that keep what they read and write."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from fake_cuda.control import FakeCuda
from heliograph._native import CudaDevice, PinnedMemory, Reservation
from heliograph.core.format import region_base
from heliograph.device.host import open_host
from heliograph.errors import GraphStateError, HeliographError, OutOfMemoryError, UsageError
from rigs import MappedPool, Rig

MIB = 1 << 20
SPAN = 64 * MIB
BASE = region_base(6, "weights")
COPY = 60  # milliseconds that a copy takes where a test wants it to be under way


@pytest.fixture
def memory(cuda: Rig) -> Iterator[Reservation]:
    reservation = cuda.device.reserve(BASE, SPAN)
    reservation.map(0, 4 * MIB)
    yield reservation
    reservation.close()


def pinned(cuda: Rig, size: int = MIB) -> PinnedMemory:
    assert isinstance(cuda.device, CudaDevice)
    return cuda.device.pinned(size)


def test_it_is_a_writable_buffer_of_its_size(fake_cuda: FakeCuda, cuda: Rig) -> None:
    memory = pinned(cuda, 100)
    assert memory.size == len(memory) == 100
    assert cuda.counter("pinned_live") == 1
    assert cuda.counter("pinned_bytes") == 100
    view = memoryview(memory)
    assert view.nbytes == 100
    assert not view.readonly
    view[:4] = b"abcd"
    assert bytes(view[:4]) == b"abcd"
    with pytest.raises(UsageError) as held:
        memory.close()
    assert "1 view" in held.value.found
    view.release()
    memory.close()
    memory.close()
    assert cuda.counter("pinned_live") == cuda.counter("pinned_bytes") == 0
    assert "pinned" not in fake_cuda.live()


def test_a_view_keeps_the_memory(fake_cuda: FakeCuda, cuda: Rig) -> None:
    view = memoryview(pinned(cuda))
    gc.collect()
    view[-1] = 7
    assert fake_cuda.live()["pinned"] == 1
    view.release()
    gc.collect()
    assert "pinned" not in fake_cuda.live()


def test_a_closed_one_is_refused(cuda: Rig, memory: Reservation) -> None:
    host = pinned(cuda)
    host.close()
    with pytest.raises(BufferError):
        memoryview(host)
    with pytest.raises(GraphStateError):
        memory.write_async(0, host, 0, 1, cuda.stream)


def test_bytes_travel_in_stream_order(cuda: Rig, memory: Reservation) -> None:
    there, back = pinned(cuda, 4096), pinned(cuda, 4096)
    data = bytes(range(256)) * 16
    memoryview(there)[:] = data
    memory.write_async(MIB, there, 0, 4096, cuda.stream)
    memory.read_async(MIB + 16, back, 32, 64, cuda.stream)
    cuda.stream.synchronize()
    assert memory.read(MIB, 4096) == data
    assert bytes(memoryview(back)[32:96]) == data[16:80]


def test_a_copy_starts_after_the_work_before_it(cuda: Rig, memory: Reservation) -> None:
    host = pinned(cuda, 8)
    cuda.spin(cuda.stream, COPY)
    source = cuda.pool.owner
    assert source is not None
    source.read_async(0, host, 0, 8, cuda.stream)
    cuda.stream.synchronize()
    assert memoryview(host)[0] == 1


@pytest.mark.parametrize(
    ("offset", "at", "size"), [(SPAN, 0, 1), (SPAN - 8, 0, 16), (0, MIB, 1), (0, MIB - 8, 16), (0, 0, 1 << 63)]
)
def test_what_is_out_of_bounds_is_refused(
    fake_cuda: FakeCuda, cuda: Rig, memory: Reservation, offset: int, at: int, size: int
) -> None:
    host = pinned(cuda)
    for copy in (memory.write_async, memory.read_async):
        with pytest.raises(UsageError):
            copy(offset, host, at, size, cuda.stream)
    assert fake_cuda.calls("cuMemcpyHtoDAsync") == fake_cuda.calls("cuMemcpyDtoHAsync") == 0
    memory.write_async(0, host, MIB - 8, 8, cuda.stream)
    memory.write_async(SPAN, host, MIB, 0, cuda.stream)
    cuda.stream.synchronize()


def test_other_devices_are_refused(cuda: Rig, memory: Reservation) -> None:
    other = CudaDevice(1)
    host = pinned(cuda)
    with pytest.raises(UsageError):
        memory.write_async(0, host, 0, 8, other.create_stream())
    with pytest.raises(UsageError):
        memory.write_async(0, other.pinned(8), 0, 8, cuda.stream)
    device = open_host(workers=1)
    of_host = device.reserve(region_base(7, "io"), SPAN)
    for copy in (of_host.write_async, of_host.read_async):
        with pytest.raises(UsageError) as refused:
            copy(0, host, 0, 8, cuda.stream)
        assert "view()" in refused.value.hint
    with pytest.raises(UsageError):
        memory.write_async(0, host, 0, 8, device.create_stream())
    of_host.close()


def test_a_capture_takes_no_copy_from_the_host(cuda: Rig, memory: Reservation) -> None:
    host = pinned(cuda)
    cuda.stream.begin_capture()
    with pytest.raises(UsageError) as refused:
        memory.write_async(0, host, 0, 8, cuda.stream)
    assert "capturing" in refused.value.found
    other = cuda.device.create_stream()
    memory.write_async(0, host, 0, 8, other)  # a stream beside it may go on
    assert cuda.stream.end_capture().node_count == 0
    other.synchronize()


def test_dropped_pinned_memory_waits_for_its_copy(fake_cuda: FakeCuda, cuda: Rig, memory: Reservation) -> None:
    fake_cuda.copy_time(COPY * 1000)
    host = pinned(cuda)
    memoryview(host)[:4] = b"abcd"
    memory.write_async(0, host, 0, 4, cuda.stream)
    started = time.monotonic()
    del host
    assert time.monotonic() - started > COPY / 2000
    assert memory.read(0, 4) == b"abcd"
    assert fake_cuda.misuse() == ""


def test_dropped_reservation_waits_for_kernels_and_copies(fake_cuda: FakeCuda, cuda: Rig) -> None:
    fake_cuda.copy_time(COPY * 1000)
    reservation = cuda.device.reserve(BASE, SPAN)
    reservation.map(0, 2 * MIB)
    cuda.spin(cuda.stream, COPY, MappedPool("memory", reservation, ((reservation.address, 2 * MIB),)))
    reservation.close()
    cuda.stream.synchronize()  # no fault
    reservation = cuda.device.reserve(BASE, SPAN)
    reservation.map(0, 2 * MIB)
    reservation.write(0, b"abcd")
    host = pinned(cuda)
    reservation.read_async(0, host, 0, 4, cuda.stream)
    reservation.close()
    assert bytes(memoryview(host)[:4]) == b"abcd"
    assert fake_cuda.misuse() == ""


def test_unmapping_waits_for_kernels_and_copies(fake_cuda: FakeCuda, cuda: Rig, memory: Reservation) -> None:
    fake_cuda.copy_time(COPY * 1000)
    memory.map(8 * MIB, 2 * MIB)
    cuda.spin(cuda.stream, COPY, MappedPool("memory", memory, ((memory.address + 8 * MIB, 2 * MIB),)))
    memory.unmap(8 * MIB, 2 * MIB)
    cuda.stream.synchronize()  # no fault
    memory.write(0, b"abcd")
    host = pinned(cuda)
    memory.read_async(0, host, 0, 4, cuda.stream)
    memory.unmap(0, 4 * MIB)
    assert bytes(memoryview(host)[:4]) == b"abcd"
    assert fake_cuda.misuse() == ""


def test_many_copies_keep_few_events(cuda: Rig, memory: Reservation) -> None:
    host = pinned(cuda)
    for _ in range(100):
        memory.write_async(0, host, 0, 64, cuda.stream)
        cuda.stream.synchronize()
    assert cuda.counter("events_live") <= 2


@pytest.mark.parametrize("entry", ["cuMemcpyHtoDAsync", "cuEventCreate", "cuEventRecord", "cuStreamGetCaptureInfo"])
def test_a_copy_that_fails_leaves_nothing_under_way(
    fake_cuda: FakeCuda, cuda: Rig, memory: Reservation, entry: str
) -> None:
    fake_cuda.copy_time(COPY * 1000)
    host = pinned(cuda)
    fake_cuda.fail(entry, "CUDA_ERROR_UNKNOWN")
    with pytest.raises(HeliographError):
        memory.write_async(0, host, 0, 8, cuda.stream)
    del host
    cuda.stream.synchronize()
    assert fake_cuda.misuse() == ""


def test_pinned_memory_ends(fake_cuda: FakeCuda, cuda: Rig) -> None:
    fake_cuda.fail("cuMemHostAlloc", "CUDA_ERROR_OUT_OF_MEMORY")
    with pytest.raises(OutOfMemoryError):
        pinned(cuda)
    with pytest.raises(UsageError):
        pinned(cuda, 0)
    assert cuda.counter("pinned_live") == 0


def test_a_fault_frees_nobody_into_an_error(fake_cuda: FakeCuda, cuda: Rig, memory: Reservation) -> None:
    host = pinned(cuda)
    memory.write_async(0, host, 0, 8, cuda.stream)
    fake_cuda.fault_kernel("count", "CUDA_ERROR_ILLEGAL_ADDRESS")
    cuda.count(cuda.stream, cuda.pool.address)
    with suppress(HeliographError):
        cuda.stream.synchronize()
    del host  # says nothing


def test_memory_can_be_mapped_so_that_its_handle_is_exportable(
    fake_cuda: FakeCuda, cuda: Rig, memory: Reservation
) -> None:
    assert fake_cuda.exportable() == 0
    memory.map(8 * MIB, 2 * MIB, exportable=True)
    assert fake_cuda.exportable() == 1
    assert memory.read(8 * MIB, 8) == bytes(8)
    memory.unmap(8 * MIB, 2 * MIB)
    device = open_host(workers=1)
    of_host = device.reserve(region_base(7, "io"), SPAN)
    with pytest.raises(UsageError):
        of_host.map(0, device.granularity, exportable=True)
    of_host.map(0, device.granularity, exportable=False)
    of_host.close()
