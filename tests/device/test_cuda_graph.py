"""CUDA graphs and executables against the fake driver: what they hold, how they are built, when they are over."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fake_cuda.control import FakeCuda
from heliograph._native import Executable, SealedImage, Template
from heliograph.core.format import FLAGS
from heliograph.device.host import kernel_image, open_host
from heliograph.errors import DriverError, GraphStateError, UsageError
from replayer import Replayer
from rigs import Rig

from .compile import compile_text


def count_template(rig: Rig, how: str) -> Template:
    """A graph of one kernel whose module nothing else holds."""
    function = rig.device.load_module(SealedImage("private", kernel_image("generic", "probe"))).function("count")
    params = rig.pool.address.to_bytes(8, "little")
    if how == "built":
        template = rig.device.create_template()
        template.add_kernel(function, (3, 1, 1), params)
        return template
    rig.stream.begin_capture()
    rig.stream.launch(function, (3, 1, 1), params)
    return rig.stream.end_capture()


def holds_its_modules(rig: Rig, fake_cuda: FakeCuda, how: str) -> None:
    template = count_template(rig, how)
    gc.collect()
    assert fake_cuda.live()["modules"] == 2
    assert [node.function.name for node in template.nodes() if node.function] == ["count"]
    executable = template.instantiate()
    executable.launch(rig.stream)
    executable.drain()
    assert rig.word() == 3
    del template, executable
    gc.collect()
    assert fake_cuda.live()["modules"] == 1


def test_captured_graph_holds_its_modules(cuda: Rig, fake_cuda: FakeCuda) -> None:
    holds_its_modules(cuda, fake_cuda, "captured")


def test_built_graph_holds_its_modules(cuda: Rig, fake_cuda: FakeCuda) -> None:
    holds_its_modules(cuda, fake_cuda, "built")


def test_stream_holds_the_modules_of_its_capture(cuda: Rig, fake_cuda: FakeCuda) -> None:
    cuda.stream.begin_capture()
    function = cuda.device.load_module(SealedImage("private", kernel_image("generic", "probe"))).function("count")
    cuda.stream.launch(function, (1, 1, 1), cuda.pool.address.to_bytes(8, "little"))
    del function
    gc.collect()
    assert fake_cuda.live()["modules"] == 2
    assert cuda.stream.end_capture().node_count == 1
    gc.collect()
    assert fake_cuda.live()["modules"] == 1


def test_executable_holds_its_modules(cuda: Rig, fake_cuda: FakeCuda) -> None:
    template = count_template(cuda, "built")
    executable = template.instantiate()
    template.close()
    gc.collect()
    assert fake_cuda.live()["modules"] == 2
    executable.launch(cuda.stream)
    executable.drain()
    assert cuda.word() == 3


@pytest.mark.parametrize("flags", FLAGS)
def test_the_driver_is_given_the_flags(cuda: Rig, fake_cuda: FakeCuda, flags: int) -> None:
    """It does not report all of them, so that they read back is no proof."""
    executable = count_template(cuda, "built").instantiate(flags)
    assert [line for line in fake_cuda.log() if "flags" in line] == [f"instantiate with flags {flags}"]
    assert executable.flags == flags


def spinning(rig: Rig, milliseconds: int) -> Executable:
    rig.stream.begin_capture()
    rig.spin(rig.stream, milliseconds)
    return rig.stream.end_capture().instantiate()


def test_executable_drains_before_it_is_destroyed(cuda: Rig, fake_cuda: FakeCuda) -> None:
    executable = spinning(cuda, 100)
    executable.launch(cuda.stream)
    assert executable.in_flight == 1
    del executable
    gc.collect()
    assert fake_cuda.destroyed_in_flight() == 0
    assert cuda.stream.query()


def test_launches_in_flight_are_counted_over_all_streams(cuda: Rig) -> None:
    executable = spinning(cuda, 60)
    streams = [cuda.device.create_stream() for _ in range(3)]
    for number, stream in enumerate(streams, start=1):
        executable.launch(stream)
        assert executable.in_flight == number
    started = time.monotonic()
    executable.drain()
    assert executable.in_flight == 0
    assert time.monotonic() - started > 0.1  # launches of one executable run one after the other


@pytest.mark.parametrize(
    "over",
    [Executable.drain, Executable.close, lambda executable: None],
    ids=["drained", "closed", "dropped"],
)
def test_executable_whose_handle_was_read_waits_for_native_launches(
    cuda: Rig, over: Callable[[Executable], None]
) -> None:
    executable = spinning(cuda, 50)
    Replayer(executable.handle, 2).stop()
    assert (cuda.word(), executable.in_flight) == (0, 0), "they run, and nobody counts them"
    over(executable)
    del executable
    gc.collect()
    assert cuda.word() == 2


def test_executable_stays_when_native_launches_cannot_be_waited_for(cuda: Rig, fake_cuda: FakeCuda) -> None:
    executable = spinning(cuda, 50)
    Replayer(executable.handle, 2).stop()
    fake_cuda.fail("cuCtxSynchronize", "CUDA_ERROR_UNKNOWN")
    with pytest.raises(DriverError):
        executable.close()
    assert fake_cuda.live()["executables"] == 1
    executable.close()
    assert cuda.word() == 2


def test_closed_executable_has_no_handle(cuda: Rig) -> None:
    executable = spinning(cuda, 1)
    assert executable.handle
    executable.close()
    with pytest.raises(GraphStateError):
        _ = executable.handle


def test_executable_of_a_closed_device_has_no_handle(cuda: Rig) -> None:
    executable = spinning(cuda, 1)
    assert executable.handle
    cuda.device.close()
    with pytest.raises(DriverError):
        _ = executable.handle


def test_launches_need_no_event_each(cuda: Rig, fake_cuda: FakeCuda) -> None:
    executable = spinning(cuda, 0)
    for _ in range(50):
        executable.launch(cuda.stream)
        executable.drain()
    assert fake_cuda.live()["events"] == 1


def test_launch_that_nothing_marks_is_over_when_the_error_arrives(cuda: Rig, fake_cuda: FakeCuda) -> None:
    executable = spinning(cuda, 100)
    fake_cuda.fail("cuEventRecord", "CUDA_ERROR_UNKNOWN")
    with pytest.raises(DriverError):
        executable.launch(cuda.stream)
    assert cuda.stream.query()
    assert cuda.word() == 1


def test_refused_launch_is_not_in_flight(cuda: Rig, fake_cuda: FakeCuda) -> None:
    executable = spinning(cuda, 1)
    for call in ("cuEventCreate", "cuGraphLaunch"):
        fake_cuda.fail(call, "CUDA_ERROR_UNKNOWN")
        with pytest.raises(DriverError):
            executable.launch(cuda.stream)
        assert executable.in_flight == 0
    assert cuda.counter("launches") == 0
    executable.launch(cuda.stream)
    executable.drain()
    assert cuda.word() == 1


def test_edges_of_one_record_are_added_in_one_call(cuda: Rig, fake_cuda: FakeCuda) -> None:
    template = cuda.device.create_template()
    for _ in range(3):
        template.add_empty()
    before = fake_cuda.calls("cuGraphAddDependencies")
    template.add_empty(after=[0, 1, 2])
    assert fake_cuda.calls("cuGraphAddDependencies") == before + 1
    assert template.edges() == [(0, 3, bytes(8)), (1, 3, bytes(8)), (2, 3, bytes(8))]


def test_node_whose_edges_fail_is_not_left_in_the_graph(cuda: Rig, fake_cuda: FakeCuda) -> None:
    template = cuda.device.create_template()
    template.add_empty()
    fake_cuda.fail("cuGraphAddDependencies", "CUDA_ERROR_UNKNOWN")
    with pytest.raises(DriverError):
        template.add_empty(after=[0])
    assert template.node_count == 1
    assert template.add_empty(after=[0]) == 1
    assert template.edges() == [(0, 1, bytes(8))]


@pytest.mark.parametrize("after", [[5], [1]])
def test_edge_from_a_node_that_is_not_there_is_refused(cuda: Rig, after: list[int]) -> None:
    template = cuda.device.create_template()
    template.add_empty()
    with pytest.raises(UsageError):
        template.add_empty(after=after)
    assert template.add_empty(after=[0]) == 1


def test_stream_of_another_device_is_refused(cuda: Rig) -> None:
    executable = spinning(cuda, 1)
    other = open_host(workers=1)
    with pytest.raises(UsageError):
        executable.launch(other.create_stream())
    executable.launch(cuda.stream)
    executable.drain()
    assert cuda.word() == 1


# A kernel that says that it runs, waits until it is told to end, but for two seconds at most, and says if it was told.
# The fake driver runs it inside of the call that comes next: a call that takes its time.
PATIENT = """
#include <time.h>
#include "kernel_abi.h"
struct Words { volatile uint64_t runs, end, told; };
static void run(const void *params, uint32_t, uint32_t) {
  Words &words = **static_cast<Words *const *>(params);
  words.runs = 1;
  for (int waited = 0; waited < 2000 && !words.end; ++waited) {
    const timespec millisecond{0, 1000000};
    nanosleep(&millisecond, nullptr);
  }
  words.told = words.end;
}
static const uint32_t at[] = {0};
static const hg_function functions[] = {{"patient", run, 8, 1, at}};
extern "C" __attribute__((visibility("default"))) const hg_module heliograph_module = {
    1, 1, "tiny", "generic", functions};
"""


@pytest.mark.parametrize(
    "read",
    [Template.nodes, Template.edges, lambda template: template.edge_count, Template.add_empty],
    ids=["nodes", "edges", "edge_count", "add_empty"],
)
def test_other_threads_run_while_the_driver_is_asked_about_a_template(
    cuda: Rig, fake_cuda: FakeCuda, tmp_path: Path, read: Callable[[Template], object]
) -> None:
    template = count_template(cuda, "built")
    function = cuda.device.load_module(SealedImage("patient", compile_text(tmp_path, PATIENT, ()))).function("patient")
    words = (ctypes.c_uint64 * 3).from_address(cuda.pool.address)
    fake_cuda.kernel_time(20_000)
    cuda.stream.launch(function, (1, 1, 1), cuda.pool.address.to_bytes(8, "little"))
    time.sleep(0.03)
    reading = threading.Thread(target=read, args=(template,))
    reading.start()
    while reading.is_alive() and not words[0]:
        time.sleep(0.001)
    words[1] = 1
    reading.join()
    assert words[2] == 1
