"""Work in flight while a stream captures: what goes waits for it without breaking the capture, and stays where no wait
can be had. What captures that fail, or are dropped, leave behind."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fake_cuda.control import FakeCuda
from fake_cuda.foreign import GLOBAL, THREAD_LOCAL, Foreign
from heliograph._native import CudaDevice, Executable, Reservation, SealedImage, Stream
from heliograph.core.format import region_base
from heliograph.device.host import kernel_image
from heliograph.errors import DriverError
from rigs import SPAN, MappedPool, Rig, cuda_rig

MIB = 1 << 20
ELSEWHERE = region_base(5, "io")
WORK = 150  # milliseconds that work in flight takes


@pytest.fixture
def keeping(fake_cuda: FakeCuda) -> Iterator[Rig]:
    """As ``cuda``, and something may stay for the rest of the process."""
    rig = cuda_rig()
    yield rig
    rig.close()
    assert (fake_cuda.misuse(), fake_cuda.destroyed_in_flight()) == ("", 0)
    fake_cuda.reset()


def spinning(rig: Rig, milliseconds: int = WORK) -> Executable:
    rig.stream.begin_capture()
    rig.spin(rig.stream, milliseconds)
    return rig.stream.end_capture().instantiate()


def launch_private(rig: Rig, stream: Stream) -> None:
    """A kernel whose module nothing else holds."""
    function = rig.device.load_module(SealedImage("private", kernel_image("generic", "probe"))).function("count")
    stream.launch(function, (1, 1, 1), rig.pool.address.to_bytes(8, "little"))


def used_memory(rig: Rig) -> Reservation:
    """A kernel runs that will write it."""
    reservation = rig.device.reserve(ELSEWHERE, SPAN)
    reservation.map(0, 2 * MIB)
    rig.spin(rig.stream, WORK, MappedPool("used", reservation, ((reservation.address, 2 * MIB),)))
    return reservation


@contextmanager
def captured_elsewhere(rig: Rig) -> Iterator[None]:
    """Another thread captures a stream meanwhile."""
    began, over = threading.Event(), threading.Event()

    def capture() -> None:
        stream = rig.device.create_stream()
        stream.begin_capture()
        began.set()
        over.wait()
        stream.close()

    thread = threading.Thread(target=capture)
    thread.start()
    began.wait()
    try:
        yield
    finally:
        over.set()
        thread.join()


# ---- memory ----


def test_memory_dropped_while_another_thread_captures_goes_after_its_work(fake_cuda: FakeCuda, cuda: Rig) -> None:
    other = cuda.device.reserve(region_base(6, "io"), SPAN)
    before = fake_cuda.live()
    reservation = used_memory(cuda)
    with captured_elsewhere(cuda):
        reservation.close()
        assert fake_cuda.calls("cuMemUnmap") == 0
    cuda.stream.synchronize()  # no fault
    left = {kind: count - before[kind] for kind, count in fake_cuda.live().items() if count != before[kind]}
    assert left == {"reservations": 1, "allocations": 1, "mappings": 1}
    assert cuda.counter("reservations_live") == 3
    assert cuda.counter("bytes_mapped") == 2 * cuda.device.granularity
    other.close()
    assert fake_cuda.live() == before | {"reservations": 1}
    assert cuda.device.reserve(ELSEWHERE, SPAN).address == ELSEWHERE
    assert cuda.counter("bytes_mapped") == cuda.device.granularity


def test_memory_dropped_while_another_thread_captures_goes_with_the_context(fake_cuda: FakeCuda, cuda: Rig) -> None:
    reservation = used_memory(cuda)
    with captured_elsewhere(cuda):
        reservation.close()
        owner = cuda.pool.owner
        assert owner is not None
        owner.close()
        assert fake_cuda.live()["mappings"] == 2
    cuda.stream.synchronize()
    vars(cuda).clear()  # nobody closes the device
    gc.collect()
    assert fake_cuda.live() == {}
    vars(cuda).update(vars(cuda_rig()))


@pytest.mark.parametrize("how", ["waited for", "closed"])
def test_memory_dropped_while_another_thread_captures_goes_when_the_device_is_waited_for(
    fake_cuda: FakeCuda, cuda: Rig, how: str
) -> None:
    before, device, granularity = fake_cuda.live(), cuda.device, cuda.device.granularity
    reservation = used_memory(cuda)
    with captured_elsewhere(cuda):
        reservation.close()
        with pytest.raises(DriverError, match="CAPTURE_UNSUPPORTED"):
            device.synchronize()
        assert fake_cuda.calls("cuMemUnmap") == 0
    if how == "closed":
        device.close()
    else:
        device.synchronize()
    assert fake_cuda.live() == before
    assert (cuda.counter("reservations_live"), cuda.counter("bytes_mapped")) == (1, granularity)


def test_memory_dropped_in_a_dead_context_is_not_waited_for(fake_cuda: FakeCuda, cuda: Rig) -> None:
    reservation = used_memory(cuda)
    fake_cuda.fail("cuCtxSynchronize", "CUDA_ERROR_ILLEGAL_ADDRESS")
    reservation.close()
    assert (cuda.device.alive, cuda.counter("reservations_live")) == (False, 1)


def test_memory_is_not_unmapped_while_another_thread_captures(fake_cuda: FakeCuda, cuda: Rig) -> None:
    reservation = used_memory(cuda)
    with captured_elsewhere(cuda), pytest.raises(DriverError, match="CAPTURE_UNSUPPORTED"):
        reservation.unmap(0, 2 * MIB)
    assert (fake_cuda.calls("cuMemUnmap"), reservation.mapped_bytes) == (0, 2 * MIB)
    reservation.unmap(0, 2 * MIB)
    cuda.stream.synchronize()  # no fault
    reservation.close()


def test_memory_whose_zeroing_fails_is_unmapped_after_its_fill(fake_cuda: FakeCuda, cuda: Rig) -> None:
    reservation = cuda.device.reserve(ELSEWHERE, SPAN)
    before = fake_cuda.live()
    fake_cuda.copy_time(WORK * 1000)
    fake_cuda.fail("cuStreamSynchronize", "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", nth=2)
    started = time.monotonic()
    with pytest.raises(DriverError, match="CAPTURE_UNSUPPORTED"):
        reservation.map(0, 2 * MIB)
    assert time.monotonic() - started > WORK / 2000
    assert fake_cuda.live() == before
    cuda.device.synchronize()
    reservation.close()


def test_memory_whose_fill_cannot_be_waited_for_is_kept(fake_cuda: FakeCuda, cuda: Rig) -> None:
    reservation = cuda.device.reserve(ELSEWHERE, SPAN)
    fake_cuda.copy_time(WORK * 1000)
    fake_cuda.fail("cuStreamSynchronize", "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", nth=-2)
    with pytest.raises(DriverError, match="CAPTURE_UNSUPPORTED"):
        reservation.map(0, 2 * MIB)
    assert (fake_cuda.calls("cuMemUnmap"), reservation.mapped_bytes) == (0, 2 * MIB)
    fake_cuda.heal("cuStreamSynchronize")
    reservation.unmap(0, 2 * MIB)
    cuda.device.synchronize()  # no fault
    reservation.map(0, 2 * MIB)
    assert reservation.read(0, 2 * MIB) == bytes(2 * MIB)
    reservation.close()


def test_pinned_memory_whose_copy_cannot_be_waited_for_is_kept(fake_cuda: FakeCuda, keeping: Rig) -> None:
    assert isinstance(keeping.device, CudaDevice)
    fake_cuda.copy_time(WORK * 1000)
    host, memory = keeping.device.pinned(MIB), keeping.pool.owner
    assert memory is not None
    memory.write_async(0, host, 0, 8, keeping.stream)
    fake_cuda.fail("cuEventSynchronize", "CUDA_ERROR_UNKNOWN")
    host.close()
    assert fake_cuda.live()["pinned"] == keeping.counter("pinned_live") == 1
    keeping.stream.synchronize()


@pytest.mark.parametrize("wait", ["granted", "refused"])
def test_pinned_memory_waits_for_a_copy_that_nothing_marks(fake_cuda: FakeCuda, keeping: Rig, wait: str) -> None:
    assert isinstance(keeping.device, CudaDevice)
    fake_cuda.copy_time(WORK * 1000)
    host, memory = keeping.device.pinned(MIB), keeping.pool.owner
    assert memory is not None
    fake_cuda.fail("cuEventRecord", "CUDA_ERROR_UNKNOWN")
    fake_cuda.fail("cuStreamSynchronize", "CUDA_ERROR_UNKNOWN")
    with pytest.raises(DriverError, match="cuEventRecord"):
        memory.write_async(0, host, 0, 8, keeping.stream)
    if wait == "refused":
        fake_cuda.fail("cuCtxSynchronize", "CUDA_ERROR_UNKNOWN")
    host.close()
    assert fake_cuda.live().get("pinned", 0) == (wait == "refused")
    keeping.stream.synchronize()


# ---- executables ----


def test_launches_from_before_a_capture_are_asked_for_and_waited_for_in_it(cuda: Rig) -> None:
    executable, stream = spinning(cuda), cuda.device.create_stream()
    executable.launch(cuda.stream)
    stream.begin_capture()
    assert executable.in_flight == 1
    executable.launch(cuda.stream)
    assert executable.in_flight == 2
    executable.drain()
    assert executable.in_flight == 0
    assert stream.end_capture().node_count == 0
    assert cuda.word() == 2


def test_executable_dropped_in_a_capture_is_drained_and_destroyed(fake_cuda: FakeCuda, cuda: Rig) -> None:
    executable, stream = spinning(cuda), cuda.device.create_stream()
    executable.launch(cuda.stream)
    stream.begin_capture()
    del executable
    gc.collect()
    assert cuda.stream.query()
    assert "executables" not in fake_cuda.live()
    assert stream.end_capture().node_count == 0


def test_launch_that_nothing_marks_is_waited_for_in_a_capture(fake_cuda: FakeCuda, cuda: Rig) -> None:
    executable, stream = spinning(cuda), cuda.device.create_stream()
    stream.begin_capture()
    fake_cuda.fail("cuEventRecord", "CUDA_ERROR_UNKNOWN")
    with pytest.raises(DriverError, match="cuEventRecord"):
        executable.launch(cuda.stream)
    assert cuda.stream.query()
    assert executable.in_flight == 0
    assert stream.end_capture().node_count == 0


def unmarked(fake_cuda: FakeCuda, cuda: Rig) -> Executable:
    """A launch behind which no event could be recorded, and for which nobody could wait."""
    executable = spinning(cuda)
    fake_cuda.fail("cuEventRecord", "CUDA_ERROR_UNKNOWN")
    fake_cuda.fail("cuStreamSynchronize", "CUDA_ERROR_UNKNOWN")
    with pytest.raises(DriverError, match="cuEventRecord"):
        executable.launch(cuda.stream)
    return executable


def test_launch_that_nothing_marks_stays_in_flight_until_it_is_waited_for(fake_cuda: FakeCuda, cuda: Rig) -> None:
    executable = unmarked(fake_cuda, cuda)
    assert executable.in_flight == 1
    with captured_elsewhere(cuda), pytest.raises(DriverError, match="CAPTURE_UNSUPPORTED"):
        executable.drain()
    assert executable.in_flight == 1
    executable.drain()
    assert (executable.in_flight, cuda.word()) == (0, 1)


def test_executable_dropped_with_a_launch_that_nothing_marks_waits_for_it(fake_cuda: FakeCuda, cuda: Rig) -> None:
    executable = unmarked(fake_cuda, cuda)
    del executable
    gc.collect()
    assert (cuda.word(), "executables" in fake_cuda.live()) == (1, False)


# In a process of its own: what is kept holds the driver for good.
KEEPS = """
import os, pathlib
from fake_cuda.control import FakeCuda
from rigs import cuda_rig
fake = FakeCuda(pathlib.Path(os.environ["HELIOGRAPH_LIBCUDA"]))
rig = cuda_rig()
rig.stream.begin_capture()
rig.spin(rig.stream, 150)
executable = rig.stream.end_capture().instantiate()
executable.launch(rig.stream)
fake.fail("cuEventSynchronize", "CUDA_ERROR_UNKNOWN")
del executable
print(fake.live()["executables"], fake.destroyed_in_flight(), rig.stream.query())
rig.stream.synchronize()
print(fake.live()["executables"], fake.live()["modules"], rig.word())
rig.close()
"""


def test_executable_whose_launch_cannot_be_waited_for_is_never_destroyed(fake_cuda: FakeCuda) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run([sys.executable, "-c", KEEPS], env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["1 0 False", "1 1 1"]


# ---- modules ----


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL], ids=["global", "thread-local"])
def test_module_dropped_in_a_capture_is_unloaded_and_spoils_nothing(fake_cuda: FakeCuda, cuda: Rig, mode: int) -> None:
    foreign, before = Foreign(fake_cuda), fake_cuda.live()["modules"]
    module = cuda.device.load_module(SealedImage("private", kernel_image("generic", "probe")))
    stream = foreign.stream()
    foreign.begin_capture(stream, mode)
    del module
    assert fake_cuda.live()["modules"] == before
    assert foreign.end_capture(stream)
    foreign.close()


# ---- functions of captures ----


def test_functions_of_a_capture_that_failed_go_with_it(fake_cuda: FakeCuda, cuda: Rig) -> None:
    stream = cuda.device.create_stream()
    stream.begin_capture()
    launch_private(cuda, stream)
    with pytest.raises(DriverError):
        stream.synchronize()
    assert stream.capturing  # although it can only be ended now
    with pytest.raises(DriverError, match="INVALIDATED"):
        stream.end_capture()
    gc.collect()
    assert not stream.capturing
    assert fake_cuda.live()["modules"] == 1


def test_functions_of_a_stream_dropped_in_its_capture_go_with_it(fake_cuda: FakeCuda, cuda: Rig) -> None:
    stream, joined, event = cuda.device.create_stream(), cuda.device.create_stream(), cuda.device.create_event()
    stream.begin_capture()
    stream.record(event)
    joined.wait(event)
    launch_private(cuda, joined)
    assert fake_cuda.live()["modules"] == 2
    stream.close()
    assert fake_cuda.live()["modules"] == 1


def test_functions_launched_on_a_joined_stream_stay_when_it_goes(fake_cuda: FakeCuda, cuda: Rig) -> None:
    stream, joined, event = cuda.device.create_stream(), cuda.device.create_stream(), cuda.device.create_event()
    back = cuda.device.create_event()
    stream.begin_capture()
    stream.record(event)
    joined.wait(event)
    launch_private(cuda, joined)
    joined.record(back)
    stream.wait(back)
    joined.close()
    gc.collect()
    assert fake_cuda.live()["modules"] == 2
    executable = stream.end_capture().instantiate()
    executable.launch(stream)
    executable.drain()
    assert cuda.word() == 1


def test_functions_of_a_capture_that_another_thread_could_not_end_stay(fake_cuda: FakeCuda, cuda: Rig) -> None:
    stream = cuda.device.create_stream()
    stream.begin_capture()
    launch_private(cuda, stream)
    found = []

    def end() -> None:
        try:
            stream.end_capture()
        except DriverError as error:
            found.append(error.found)

    thread = threading.Thread(target=end)
    thread.start()
    thread.join()
    assert "WRONG_THREAD" in found[0]
    assert (stream.capturing, fake_cuda.live()["modules"]) == (True, 2)
    executable = stream.end_capture().instantiate()
    executable.launch(stream)
    executable.drain()
    assert cuda.word() == 1


def test_functions_launched_into_the_capture_of_others_go_with_the_stream(fake_cuda: FakeCuda, cuda: Rig) -> None:
    assert isinstance(cuda.device, CudaDevice)
    foreign, event, back = Foreign(fake_cuda), cuda.device.create_event(), cuda.device.create_event()
    raw = foreign.stream()
    theirs, ours = cuda.device.borrow_stream(raw), cuda.device.create_stream()
    foreign.begin_capture(raw)
    theirs.record(event)
    ours.wait(event)
    launch_private(cuda, ours)
    ours.record(back)
    theirs.wait(back)
    theirs.close()
    gc.collect()
    assert fake_cuda.live()["modules"] == 2
    foreign.end_capture(raw)
    ours.close()
    assert fake_cuda.live()["modules"] == 1
    foreign.close()


def test_capture_that_cannot_be_told_apart_is_not_begun(fake_cuda: FakeCuda, cuda: Rig) -> None:
    before = fake_cuda.live()
    fake_cuda.fail("cuStreamGetCaptureInfo", "CUDA_ERROR_UNKNOWN")
    with pytest.raises(DriverError, match="cuStreamGetCaptureInfo"):
        cuda.stream.begin_capture()
    assert fake_cuda.live() == before
    cuda.stream.begin_capture()
    assert cuda.stream.end_capture().node_count == 0
