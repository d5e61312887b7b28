"""The CUDA device against the fake driver: contexts, memory, modules, and every call failing once."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from fake_cuda.control import IMAGE, FakeCuda
from heliograph._native import CudaDevice, SealedImage
from heliograph.capture.export_graph import record_export_graph
from heliograph.core.format import region_base
from heliograph.device.host import open_host
from heliograph.errors import (
    AddressTakenError,
    DeviceFaultError,
    DriverError,
    ModuleError,
    OutOfMemoryError,
    UsageError,
)
from rigs import SPAN, Rig

MIB = 1 << 20
ELSEWHERE = region_base(5, "io")


# ---- contexts ----


def test_context_goes_with_the_last_object_in_it(fake_cuda: FakeCuda) -> None:
    device = CudaDevice()
    stream = device.create_stream()
    device.close()
    device.close()
    assert not device.alive
    assert fake_cuda.live() == {"contexts": 1, "streams": 1}
    with pytest.raises(DriverError) as refused:
        stream.query()
    assert "closed" in refused.value.found
    with pytest.raises(DriverError):
        device.create_stream()
    del stream, device
    gc.collect()
    assert fake_cuda.live() == {}
    assert CudaDevice().create_stream().query()


def test_two_devices_have_two_contexts(cuda: Rig) -> None:
    other = CudaDevice(1)
    cuda.spin(cuda.stream, 100)
    other.synchronize()
    assert not cuda.stream.query()
    assert other.counters()["nodes_run"] == 0
    cuda.device.synchronize()
    assert cuda.stream.query()


def test_callers_context_is_current_again_after_each_call(fake_cuda: FakeCuda, cuda: Rig) -> None:
    record_export_graph(lambda: cuda.spin(cuda.stream, 1), stream=cuda.stream, pools=[cuda.pool], retain="executable")
    assert fake_cuda.calls("cuCtxPushCurrent") == fake_cuda.calls("cuCtxPopCurrent") > 10


def test_context_that_was_reset_is_dead_and_its_objects_are_not_touched(fake_cuda: FakeCuda, cuda: Rig) -> None:
    event = cuda.device.create_event()
    assert cuda.device.alive
    fake_cuda.reset_context()
    with pytest.raises(DriverError) as refused:
        event.query()
    assert "CUDA_ERROR_CONTEXT_IS_DESTROYED" in refused.value.found
    assert not cuda.device.alive
    destroyed = fake_cuda.calls("cuEventDestroy")
    del event
    assert fake_cuda.calls("cuEventDestroy") == destroyed
    with pytest.raises(DriverError):
        cuda.device.synchronize()


def test_new_context_of_the_same_device_does_not_revive_the_old_one(fake_cuda: FakeCuda, cuda: Rig) -> None:
    fake_cuda.reset_context()
    again = CudaDevice()
    assert again.alive
    assert not cuda.device.alive


def test_fault_of_a_kernel_is_told_by_every_later_call(fake_cuda: FakeCuda, cuda: Rig) -> None:
    fake_cuda.fault_kernel("count", "CUDA_ERROR_ILLEGAL_ADDRESS")
    cuda.count(cuda.stream, cuda.pool.address)
    calls: list[Callable[[], object]] = [cuda.stream.synchronize, cuda.device.create_event, cuda.word]
    for call in calls:
        with pytest.raises(DeviceFaultError) as fault:
            call()
        assert "CUDA_ERROR_ILLEGAL_ADDRESS" in fault.value.found
    assert not cuda.device.alive


def test_kernel_that_leaves_its_memory_faults(cuda: Rig) -> None:
    cuda.count(cuda.stream, cuda.pool.address + cuda.device.granularity)
    with pytest.raises(DeviceFaultError):
        cuda.stream.synchronize()


# ---- memory ----


def test_address_that_the_driver_does_not_give_is_refused(fake_cuda: FakeCuda, cuda: Rig) -> None:
    before = fake_cuda.live()
    fake_cuda.ignore_hints(1)
    with pytest.raises(AddressTakenError) as refused:
        cuda.device.reserve(ELSEWHERE, SPAN)
    assert refused.value.required == hex(ELSEWHERE)
    assert fake_cuda.live() == before
    assert cuda.device.reserve(ELSEWHERE, SPAN).address == ELSEWHERE


@pytest.mark.parametrize("call", ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemsetD8"])
def test_mapping_that_fails_halfway_frees_what_it_took(fake_cuda: FakeCuda, cuda: Rig, call: str) -> None:
    reservation = cuda.device.reserve(ELSEWHERE, SPAN)
    before = fake_cuda.live()
    fake_cuda.fail(call, "CUDA_ERROR_OUT_OF_MEMORY")
    with pytest.raises(OutOfMemoryError):
        reservation.map(0, 2 * MIB)
    assert fake_cuda.live() == before
    assert reservation.mapped_bytes == 0
    reservation.map(0, 2 * MIB)
    assert reservation.read(0, 2 * MIB) == bytes(2 * MIB)


def test_memory_that_cannot_be_zeroed_is_not_taken_back_while_it_is_zeroed(fake_cuda: FakeCuda, cuda: Rig) -> None:
    """As where this thread captures: the driver then refuses to wait, but not the fill before it."""
    reservation = cuda.device.reserve(ELSEWHERE, SPAN)
    before, filled = fake_cuda.live(), fake_cuda.calls("cuMemsetD8")
    fake_cuda.fail("cuStreamSynchronize", "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED")
    with pytest.raises(DriverError, match="CAPTURE_UNSUPPORTED"):
        reservation.map(0, 2 * MIB)
    assert fake_cuda.calls("cuMemsetD8") == filled, "it may still run when the memory is unmapped"
    assert fake_cuda.live() == before
    reservation.map(0, 2 * MIB)
    assert reservation.read(0, 2 * MIB) == bytes(2 * MIB)


def test_memory_ends(fake_cuda: FakeCuda, cuda: Rig) -> None:
    reservation = cuda.device.reserve(ELSEWHERE, SPAN)
    fake_cuda.limit_memory(fake_cuda.memory_in_use() + 4 * MIB)
    with pytest.raises(OutOfMemoryError):
        reservation.map(0, 6 * MIB)
    reservation.map(0, 4 * MIB)
    assert cuda.counter("bytes_mapped") == 4 * MIB + cuda.device.granularity


def test_what_is_mapped_is_not_free(cuda: Rig) -> None:
    before = cuda.device.free_bytes
    assert before is not None
    reservation = cuda.device.reserve(ELSEWHERE, SPAN)
    reservation.map(0, 4 * MIB)
    assert cuda.device.free_bytes == before - 4 * MIB
    reservation.close()
    assert cuda.device.free_bytes == before


def test_only_whole_mappings_are_unmapped_and_protected(cuda: Rig) -> None:
    reservation = cuda.device.reserve(ELSEWHERE, SPAN)
    reservation.map(0, 4 * MIB)
    reservation.map(4 * MIB, 2 * MIB)
    for offset, size in [(0, 2 * MIB), (2 * MIB, 2 * MIB), (0, 8 * MIB), (8 * MIB, 2 * MIB)]:
        with pytest.raises(UsageError):
            reservation.unmap(offset, size)
        with pytest.raises(UsageError):
            reservation.protect(offset, size, writable=False)
    reservation.protect(0, 6 * MIB, writable=False)
    reservation.unmap(4 * MIB, 2 * MIB)
    assert reservation.mapped_bytes == 4 * MIB


def test_protected_memory_is_not_written_by_the_device(cuda: Rig) -> None:
    owner = cuda.pool.owner
    assert owner is not None
    size = cuda.device.granularity
    cuda.stream.memset(cuda.pool.address, 1, 8)
    cuda.stream.synchronize()
    owner.protect(0, size, writable=False)
    assert cuda.word() == 0x0101010101010101
    cuda.stream.memset(cuda.pool.address, 2, 8)
    with pytest.raises(DeviceFaultError):
        cuda.stream.synchronize()


def test_range_outside_the_reservation_is_refused(cuda: Rig) -> None:
    owner = cuda.pool.owner
    assert owner is not None
    for offset, size in [(SPAN, 1), (SPAN - 4, 8), (1 << 63, 8)]:
        with pytest.raises(UsageError):
            owner.read(offset, size)
    assert owner.read(0, 8) == bytes(8)


def test_what_is_launched_next_sees_what_was_written(fake_cuda: FakeCuda, cuda: Rig) -> None:
    """Copies from pageable memory and fills are on their way when the driver's call returns, on the default stream,
    which other streams do not wait for."""
    fake_cuda.copy_time(50_000)
    region, stream, address = cuda.pool.owner, cuda.stream, cuda.pool.address
    assert region is not None
    region.write(0, b"\7" * 64)
    stream.memcpy(address + 256, address, 64)
    stream.synchronize()
    assert region.read(256, 64) == b"\7" * 64
    region.fill(0, 9, 64)
    stream.memcpy(address + 256, address, 64)
    stream.synchronize()
    assert region.read(256, 64) == b"\x09" * 64


# ---- modules and parameters ----


def test_parameters_are_laid_out_as_the_driver_says(cuda: Rig) -> None:
    function = cuda.device.load_module(SealedImage("text", IMAGE)).function("mixed")
    assert function.param_bytes == 32
    data = bytes(range(1, 33))
    template = cuda.device.create_template()
    template.add_kernel(function, (1, 1, 1), data)
    (node,) = template.nodes()
    # Bytes 1 to 3 and 18 to 23 lie between parameters: nothing is kept there.
    assert node.params == data[:1] + bytes(3) + data[4:18] + bytes(6) + data[24:]
    assert node.function is not None
    assert node.function.name == "mixed"


def test_kernel_without_parameters_is_legal(cuda: Rig) -> None:
    function = cuda.device.load_module(SealedImage("text", IMAGE)).function("nothing")
    assert function.param_bytes == 0
    template = cuda.device.create_template()
    template.add_kernel(function, (1, 1, 1), b"")
    template.instantiate().launch(cuda.stream)
    cuda.stream.synchronize()


@pytest.mark.parametrize("size", [0, 31, 33])
def test_parameters_of_another_size_are_refused(cuda: Rig, size: int) -> None:
    function = cuda.device.load_module(SealedImage("text", IMAGE)).function("mixed")
    template = cuda.device.create_template()
    for use in (
        lambda data: template.add_kernel(function, (1, 1, 1), data),
        lambda data: cuda.stream.launch(function, (1, 1, 1), data),
    ):
        with pytest.raises(UsageError) as refused:
            use(bytes(size))
        assert (f"{size} parameter bytes", "32") == (refused.value.found, refused.value.required)
        use(bytes(32))
    assert template.node_count == 1


def test_unknown_function_is_refused_by_name(cuda: Rig) -> None:
    module = cuda.device.load_module(SealedImage("text", IMAGE))
    with pytest.raises(ModuleError) as refused:
        module.function("softmax")
    assert "softmax" in refused.value.doing
    assert module.function_names() == ["mixed", "nothing"]


@pytest.mark.parametrize(
    ("image", "code"),
    [(b"no image", "CUDA_ERROR_INVALID_IMAGE"), (b"fake-image sm_80\nf\n", "CUDA_ERROR_NO_BINARY_FOR_GPU")],
)
def test_image_that_does_not_fit_is_refused(cuda: Rig, image: bytes, code: str) -> None:
    with pytest.raises(ModuleError) as refused:
        cuda.device.load_module(SealedImage("someone's kernels", image))
    assert code in refused.value.found
    assert "someone's kernels" in refused.value.doing
    assert cuda.device.load_module(SealedImage("text", IMAGE)).level == "sm_90"


def test_function_of_another_device_is_refused(cuda: Rig) -> None:
    template = cuda.device.create_template()
    host = Rig(open_host(workers=1), slot=1)
    with pytest.raises(UsageError):
        host.count(cuda.stream, cuda.pool.address)
    host.close()
    cuda.count(cuda.stream, cuda.pool.address)
    cuda.stream.synchronize()
    assert (cuda.word(), template.node_count) == (1, 0)
