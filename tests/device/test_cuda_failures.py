"""Every call of the driver fails once: the error says which and what it means, and nothing is left behind."""

from __future__ import annotations

import gc
import re
from contextlib import suppress
from pathlib import Path

import pytest

from fake_cuda.control import CODES, IMAGE, FakeCuda
from fake_cuda.foreign import Foreign
from heliograph._native import CudaDevice, SealedImage
from heliograph.capture.export_graph import record_export_graph
from heliograph.errors import DeviceError, HeliographError, OutOfMemoryError
from rigs import Rig, cuda_rig

TABLE = (Path(__file__).parents[2] / "native" / "cuda_api.h").read_text()
ENTRIES = set(re.findall(r"X\((cu\w+), \d+\)", TABLE))
IMAGE_WITH_ALL = IMAGE + b"tiled 0:8\nglobal table 8 1\n"
CLUSTER = (4, b"\x10\0\0\0\1\0\0\0\1\0\0\0")

# What destroys may fail too; then the fake still counts the object as alive, and so it is left out of that check.
DESTROYS = {
    "cuEventDestroy", "cuStreamDestroy", "cuModuleUnload", "cuGraphDestroy", "cuGraphExecDestroy", "cuMemUnmap",
    "cuMemRelease", "cuMemAddressFree", "cuDevicePrimaryCtxRelease", "cuCtxPopCurrent", "cuCtxPushCurrent",
    "cuCtxGetId", "cuMemFreeHost",
}  # fmt: skip
# Calls of whose failure there is nothing to tell.
QUIET = {
    "cuThreadExchangeStreamCaptureMode",  # the mode stays as it was: what comes then is refused by the driver
    "cuGraphDestroyNode",  # takes back a node of which something failed: that error is told
    "cuGetErrorName", "cuGetErrorString",  # asked while an error is told
}  # fmt: skip
# Called by what only other tests do: memory pools, pinned memory and images have their own.
ELSEWHERE = {"cuMemHostAlloc", "cuMemFreeHost", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuKernelGetLibrary"}


def everything(fake: FakeCuda) -> None:
    """A little of all that the device does."""
    rig = cuda_rig()
    foreign = Foreign(fake)
    try:
        launch_and_capture(rig)
        build(rig)
        ask(rig)
        borrow(rig, foreign)
    finally:
        if rig.device.alive:
            foreign.close()
    rig.close()


def launch_and_capture(rig: Rig) -> None:
    other, forked, joined = rig.device.create_stream(), rig.device.create_event(), rig.device.create_event()

    def work() -> None:
        rig.count(rig.stream, rig.pool.address)
        rig.stream.record(forked)
        other.wait(forked)
        other.memset(rig.pool.address + 64, 7, 8)
        rig.stream.memcpy(rig.pool.address + 128, rig.pool.address, 8)
        other.record(joined)
        rig.stream.wait(joined)

    captured = record_export_graph(work, stream=rig.stream, pools=[rig.pool], retain="executable")
    captured.template.nodes()
    captured.template.edges()
    for stream in (rig.stream, other):
        captured.launch(stream)
    captured.drain()
    rig.device.synchronize()
    done = rig.device.create_event()
    rig.stream.record(done)
    done.synchronize()
    assert done.query()
    rig.stream.query()
    rig.stream.synchronize()
    assert (rig.word(), rig.word(at=64), rig.word(at=128)) == (2, 0x0707070707070707, 2)


def build(rig: Rig) -> None:
    module = rig.device.load_module(SealedImage("text", IMAGE_WITH_ALL))
    module.function_names()
    module.write_global("table", module.read_global("table"))
    tiled, nothing = module.function("tiled"), module.function("nothing")
    tiled.raise_attributes([(9, 50)])
    built = rig.device.create_template()
    built.add_empty()
    built.add_memset(rig.pool.address + 256, 1, 8, after=[0], element=4, height=2, pitch=64)
    built.add_memcpy(rig.pool.address + 512, rig.pool.address + 256, 8, after=[1])
    built.add_kernel(tiled, (1, 1, 1), bytes(8), [2], shared_bytes=64 << 10, form=1)
    built.add_kernel(nothing, (16, 1, 1), b"", [3], attrs=[CLUSTER, (8, b"\xff\xff\xff\xff")])
    assert [node.form for node in built.nodes()] == [0, 0, 0, 1, 0]
    assert len(built.edges()) == 4
    assert built.instantiate(9).flags == 9


def ask(rig: Rig) -> None:
    device = rig.device
    assert isinstance(device, CudaDevice)
    for fact in (device.name, device.arch, device.processors, device.shared_optin, device.driver_version):
        assert fact
    assert device.free_bytes
    device.set_limit("stack", device.limits()["stack"] + 16)
    info = device.pointer_info(rig.pool.address)
    assert info is not None
    with device.relaxed():
        pass


def borrow(rig: Rig, foreign: Foreign) -> None:
    device = rig.device
    assert isinstance(device, CudaDevice)
    library = foreign.library(IMAGE_WITH_ALL)
    kernel = foreign.kernel(library, "tiled")
    foreign.set_kernel(kernel, 8, 64 << 10)
    inner, outer = foreign.graph(), foreign.graph()
    foreign.launch(inner, kernel=kernel, buffer=bytes(8))
    foreign.record(outer, 1)
    foreign.wait(outer, 1)
    foreign.child(outer, inner)
    foreign.launch(outer, function=foreign.function(foreign.kernel(library, "nothing")))
    borrowed = device.borrow_template(outer)
    assert len(borrowed.edges()) == 1
    function = borrowed.nodes()[2].function
    assert function is not None
    function.raise_attributes([(8, dict(function.attributes)[8] + 16)])
    borrowed_module = device.borrow_module(function)
    assert borrowed_module.read_global("table")
    borrowed.instantiate().launch(rig.stream)
    raw = foreign.stream()
    assert device.capture_info(raw) == (0, 0)
    foreign.begin_capture(raw)
    try:
        rig.count(device.borrow_stream(raw), rig.pool.address)
        assert device.capture_info(raw)[1] == 1
    finally:
        foreign.end_capture(raw)


def calls_of_everything(fake_cuda: FakeCuda) -> dict[str, int]:
    everything(fake_cuda)
    gc.collect()
    return fake_cuda.all_calls()


def test_everything_is_called(fake_cuda: FakeCuda) -> None:
    """So that no call is left out of the tests below."""
    called = calls_of_everything(fake_cuda).keys()
    assert ENTRIES - called - QUIET - DESTROYS - ELSEWHERE == set()


def told_by_everything(fake_cuda: FakeCuda) -> HeliographError | None:
    try:
        everything(fake_cuda)
    except HeliographError as error:
        return error.with_traceback(None)  # which would keep what it leads to alive
    return None


def test_every_call_may_fail_and_leaves_nothing(fake_cuda: FakeCuda) -> None:
    counts = calls_of_everything(fake_cuda)
    untold = set()
    for entry, count in counts.items():
        if entry in DESTROYS:
            continue
        for nth in sorted({1, (count + 1) // 2, count}):
            where = f"{entry}, call {nth} of {count}"
            fake_cuda.reset()
            fake_cuda.fail(entry, "CUDA_ERROR_UNKNOWN", nth=nth)
            told = told_by_everything(fake_cuda)
            if told is None:
                untold.add(entry)
            else:
                assert isinstance(told, DeviceError), where
                assert told.found.startswith(f"{entry}: CUDA_ERROR_UNKNOWN ({CODES['CUDA_ERROR_UNKNOWN']}): "), where
                assert told.doing, where
                assert told.hint, where
            del told
            gc.collect()
            assert fake_cuda.live() == {}, where
            assert fake_cuda.misuse() == "", where
    # The first is asked of launches in flight, and again later; the second also where memory goes that nobody uses.
    assert untold - QUIET <= {"cuEventQuery", "cuCtxSynchronize"}


@pytest.mark.parametrize(
    "entry", ["cuGraphAddNode", "cuGraphKernelNodeSetAttribute", "cuMemCreate", "cuModuleLoadData"]
)
def test_memory_may_end_in_any_call(fake_cuda: FakeCuda, entry: str) -> None:
    count = calls_of_everything(fake_cuda)[entry]
    for nth in range(1, count + 1):
        fake_cuda.reset()
        fake_cuda.fail(entry, "CUDA_ERROR_OUT_OF_MEMORY", nth=nth)
        assert isinstance(told_by_everything(fake_cuda), OutOfMemoryError)
        gc.collect()
        assert fake_cuda.live() == {}, f"{entry}, call {nth} of {count}"


@pytest.mark.parametrize("entry", sorted(DESTROYS - ELSEWHERE))
def test_failing_destruction_is_survived(fake_cuda: FakeCuda, entry: str) -> None:
    count = calls_of_everything(fake_cuda)[entry]
    assert count > 0
    fake_cuda.fail(entry, "CUDA_ERROR_UNKNOWN", nth=count)
    with suppress(HeliographError):
        everything(fake_cuda)
    gc.collect()
    fake_cuda.reset_context()
