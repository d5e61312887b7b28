"""R2 to R4, R7: what a graph holds, how long, and that nothing goes while a replay runs. On every device.

The scripts at the end run in processes of their own: interpreter exit, and memory that is never freed.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from fake_cuda.control import FakeCuda
from heliograph._native import Stream, Template
from heliograph.capture.export_graph import Retain, record_export_graph
from heliograph.device.graph import Graph
from heliograph.device.host import open_host
from heliograph.errors import DeviceFaultError, DriverError, FlagsError, GraphStateError, OutOfMemoryError, UsageError
from replayer import Replayer
from rigs import RIGS, MappedPool, Rig
from witness import Plain, Witness

KERNEL_MS = 200


def record(
    rig: Rig,
    *,
    milliseconds: int = 1,
    owners: tuple[object, ...] = (),
    pools: tuple[MappedPool, ...] = (),
    retain: Retain = "executable",
    graph: Graph | None = None,
) -> Graph:
    """A graph of one kernel that runs for a stated time."""
    stream = rig.device.create_stream()
    return record_export_graph(
        lambda: rig.spin(stream, milliseconds),
        stream=stream,
        pools=(rig.pool, *pools),
        owners=owners,
        retain=retain,
        graph=graph,
    )


def two_streams(rig: Rig) -> tuple[Stream, Stream]:
    return rig.device.create_stream(), rig.device.create_stream()


# ---- R1, R2, R3: template or executable ----


def test_template_creates_no_executable(rig: Rig) -> None:
    graph = record(rig, retain="template")
    assert graph.recorded
    assert graph.template.node_count == 1
    assert graph.costs.executables == 0
    assert (rig.counter("templates_created"), rig.counter("executables_created")) == (1, 0)


def test_executable_returns_the_graph_itself_and_no_copy(rig: Rig) -> None:
    mine = Graph("decode/8")
    graph = record(rig, graph=mine)
    assert graph is mine
    assert graph.template is mine.template
    assert (rig.counter("templates_created"), rig.counter("executables_created")) == (1, 1)


def test_executable_states_what_it_costs(rig: Rig) -> None:
    def work() -> None:
        for _ in range(3_000):  # enough that a driver, which takes memory by the megabyte, takes some
            rig.count(rig.stream, rig.pool.address)

    graph = record_export_graph(work, stream=rig.stream, pools=[rig.pool], retain="executable")
    assert graph.costs.executables == 1
    assert 3_000 * 16 < graph.costs.device_bytes < 3_000 * 16_384


def test_record_replay_and_reset_in_one_process(rig: Rig) -> None:
    graph = record(rig)
    stream = rig.device.create_stream()
    for _ in range(3):
        graph.launch(stream)
    graph.drain()
    assert graph.in_flight == 0
    assert rig.word() == 3
    graph.reset()
    assert rig.counter("executables_live") == 0
    assert graph.was_reset


def test_graph_is_recorded_again_after_reset(rig: Rig) -> None:
    graph = record(rig)
    first = graph.capture
    graph.reset()
    record(rig, graph=graph)
    graph.launch(rig.device.create_stream())
    graph.drain()
    assert rig.word() == 1
    assert graph.capture != first
    assert not graph.was_reset


def test_second_recording_into_a_graph_is_refused(rig: Rig) -> None:
    graph = record(rig)
    with pytest.raises(GraphStateError):
        record(rig, graph=graph)
    assert graph.recorded


def test_second_executable_is_refused(rig: Rig) -> None:
    graph = record(rig, retain="template")
    assert graph.instantiate() is graph
    with pytest.raises(GraphStateError):
        graph.instantiate()
    assert rig.counter("executables_created") == 1


def test_launch_without_an_executable_is_refused(rig: Rig) -> None:
    graph = record(rig, retain="template")
    stream = rig.device.create_stream()
    with pytest.raises(GraphStateError):
        graph.launch(stream)
    graph.instantiate().launch(stream)
    graph.drain()
    assert rig.word() == 1


def test_graph_that_was_reset_has_no_template(rig: Rig) -> None:
    graph = record(rig, retain="template")
    assert graph.template.node_count == 1
    graph.reset()
    with pytest.raises(GraphStateError) as refused:
        _ = graph.template
    assert "reset" in refused.value.found


def test_graph_that_was_never_recorded_has_no_template() -> None:
    with pytest.raises(GraphStateError) as refused:
        _ = Graph().template
    assert "never recorded" in refused.value.found


# ---- R2: out of memory ----


def test_out_of_memory_frees_what_was_taken_on_cuda(fake_cuda: FakeCuda, cuda: Rig) -> None:
    owner = Plain()
    before = fake_cuda.memory_in_use()
    fake_cuda.limit_memory(before)
    graph = record(cuda, retain="template", owners=(owner,))
    with pytest.raises(OutOfMemoryError) as refused:
        graph.instantiate()
    assert "CUDA_ERROR_OUT_OF_MEMORY" in refused.value.found
    assert fake_cuda.memory_in_use() == before
    assert cuda.counter("executables_live") == 0
    assert graph.owners == (owner,)
    fake_cuda.limit_memory(before + (1 << 20))
    assert graph.instantiate().costs.executables == 1


def test_out_of_memory_frees_what_was_taken_on_the_host(host: Rig) -> None:
    room = host.device.granularity + 1024
    rig = Rig(open_host(workers=1, memory_limit=room), slot=1)
    graphs = [record(rig)]
    size = graphs[0].costs.device_bytes
    graphs += [record(rig) for _ in range(1024 // size - 1)]
    last = record(rig, retain="template")
    with pytest.raises(OutOfMemoryError):
        last.instantiate()
    assert rig.counter("executables_live") == len(graphs)
    graphs.pop().reset()
    assert last.instantiate().costs.device_bytes == size
    rig.close()


# ---- R4, R7: pools and owners ----


def test_owners_live_until_reset(rig: Rig) -> None:
    first, second = Plain(), Plain()
    watched = [weakref.ref(first), weakref.ref(second)]
    graph = record(rig, retain="template", owners=(first, second))
    del first, second
    gc.collect()
    assert all(owner() is not None for owner in watched)
    graph.reset()
    assert all(owner() is None for owner in watched)


def test_pools_live_until_reset(rig: Rig) -> None:
    first, second = rig.make_pool("first", slot=1), rig.make_pool("second", slot=2)
    watched = [weakref.ref(first), weakref.ref(second)]
    graph = record(rig, retain="template", pools=(first, second))
    del first, second
    gc.collect()
    assert all(pool() is not None for pool in watched)
    graph.reset()
    assert all(pool() is None for pool in watched)


def test_owners_and_pools_live_until_the_graph_is_collected(rig: Rig) -> None:
    owner, pool = Plain(), rig.make_pool("second", slot=1)
    watched: list[weakref.ref[object]] = [weakref.ref(owner), weakref.ref(pool)]
    graph = record(rig, owners=(owner,), pools=(pool,))
    del owner, pool
    gc.collect()
    assert all(held() is not None for held in watched)
    del graph
    gc.collect()
    assert all(held() is None for held in watched)


def test_owners_and_pools_live_after_a_failed_instantiation(fake_cuda: FakeCuda, cuda: Rig) -> None:
    owner, pool = Plain(), cuda.make_pool("second", slot=1)
    watched: list[weakref.ref[object]] = [weakref.ref(owner), weakref.ref(pool)]
    graph = Graph()
    fake_cuda.fail("cuGraphInstantiateWithFlags", "CUDA_ERROR_OUT_OF_MEMORY")
    with pytest.raises(OutOfMemoryError):
        record(cuda, owners=(owner,), pools=(pool,), graph=graph)
    del owner, pool
    gc.collect()
    assert all(held() is not None for held in watched)
    assert graph.instantiate().costs.executables == 1
    graph.reset()
    assert all(held() is None for held in watched)


def test_failed_instantiation_without_a_graph_of_the_callers_lets_go(fake_cuda: FakeCuda, cuda: Rig) -> None:
    witness = Witness()
    seen = witness.seen
    fake_cuda.fail("cuGraphInstantiateWithFlags", "CUDA_ERROR_OUT_OF_MEMORY")
    with pytest.raises(OutOfMemoryError):
        record(cuda, owners=(witness,))
    del witness
    gc.collect()
    assert seen == [True]
    assert cuda.counter("templates_live") == 0


def test_owner_shared_by_two_graphs_lives_until_both_are_gone(rig: Rig) -> None:
    streams = two_streams(rig)
    witness = Witness(*streams)
    seen = witness.seen
    running = record(rig, milliseconds=KERNEL_MS, owners=(witness,))
    failing = record(rig, owners=(witness,), retain="template")
    del witness
    for stream in streams:
        running.launch(stream)
    with pytest.raises(FlagsError):
        failing.instantiate(flags=2)
    del failing
    gc.collect()
    assert seen == []
    del running
    gc.collect()
    assert seen == [True]


# ---- R4: draining ----


def test_reset_drains(rig: Rig) -> None:
    streams = two_streams(rig)
    witness = Witness(*streams)
    seen = witness.seen
    graph = record(rig, milliseconds=KERNEL_MS, owners=(witness,))
    del witness
    instance = graph.instance  # someone else who holds the executable
    for stream in streams:
        graph.launch(stream)
    assert graph.in_flight == 2
    assert not any(stream.query() for stream in streams)
    graph.reset()
    assert seen == [True]
    assert rig.word() == 2
    assert instance is not None
    with pytest.raises(GraphStateError):
        instance.executable.launch(streams[0])
    graph.reset()
    assert seen == [True]


def test_collection_drains(rig: Rig) -> None:
    streams = two_streams(rig)
    witness = Witness(*streams)
    seen = witness.seen
    graph = record(rig, milliseconds=KERNEL_MS, owners=(witness,))
    del witness
    for stream in streams:
        graph.launch(stream)
    assert not any(stream.query() for stream in streams)
    del graph
    gc.collect()
    assert seen == [True]
    assert rig.word() == 2


def test_drain_that_fails_keeps_everything(fake_cuda: FakeCuda, cuda: Rig) -> None:
    owner = Plain()
    watched = weakref.ref(owner)
    graph = record(cuda, milliseconds=KERNEL_MS, owners=(owner,))
    del owner
    graph.launch(cuda.device.create_stream())
    fake_cuda.fail("cuEventSynchronize", "CUDA_ERROR_UNKNOWN")
    with pytest.raises(DriverError):
        graph.reset()
    assert watched() is not None
    assert graph.recorded
    assert graph.in_flight == 1
    graph.reset()
    assert watched() is None
    assert not graph.recorded


def test_device_fault_while_draining_is_raised_and_everything_let_go(fake_cuda: FakeCuda, cuda: Rig) -> None:
    owner = Plain()
    watched = weakref.ref(owner)
    graph = record(cuda, milliseconds=20, owners=(owner,))
    del owner
    fake_cuda.fault_kernel("spin", "CUDA_ERROR_ILLEGAL_ADDRESS")
    graph.launch(cuda.device.create_stream())
    with pytest.raises(DeviceFaultError) as fault:
        graph.reset()
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in fault.value.found
    assert watched() is None
    assert not cuda.device.alive
    fake_cuda.reset_context()


class SlowExecutable:
    """Stands for an executable: its launch takes until the test lets it go on."""

    def __init__(self) -> None:
        self.flags = 0
        self.in_launch, self.go_on = threading.Event(), threading.Event()
        self.draining, self.drained = threading.Event(), threading.Event()
        self.calls: list[str] = []

    def launch(self, stream: Stream) -> None:
        self.calls.append("launch begins")
        self.in_launch.set()
        self.go_on.wait(10)
        self.calls.append("launch ends")

    def close(self) -> None:
        self.calls.append("drain")
        self.draining.set()
        self.drained.wait(10)
        self.calls.append("close")


def graph_of(executable: SlowExecutable) -> Graph:
    graph = Graph()
    template = SimpleNamespace(instantiate=lambda flags: executable, close=lambda: None)
    graph.adopt(cast(Template, template), 0)
    return graph.instantiate()


def test_reset_waits_for_a_launch() -> None:
    executable = SlowExecutable()
    executable.drained.set()
    graph = graph_of(executable)
    launching = threading.Thread(target=graph.launch, args=(None,))
    launching.start()
    assert executable.in_launch.wait(10)
    resetting = threading.Thread(target=graph.reset)
    resetting.start()
    time.sleep(0.05)
    executable.go_on.set()
    launching.join(10)
    resetting.join(10)
    assert executable.calls == ["launch begins", "launch ends", "drain", "close"]


def test_no_launch_begins_during_a_reset() -> None:
    executable = SlowExecutable()
    executable.go_on.set()
    graph = graph_of(executable)
    resetting = threading.Thread(target=graph.reset)
    resetting.start()
    assert executable.draining.wait(10)
    try:
        with pytest.raises(GraphStateError) as refused:
            graph.launch(cast(Stream, None))
        assert "being released" in refused.value.found
    finally:
        executable.drained.set()
        resetting.join(10)
    assert executable.calls == ["drain", "close"]


def test_threads_launch_while_another_resets(rig: Rig) -> None:
    witness = Witness(*(streams := two_streams(rig)))
    seen = witness.seen
    graph = record(rig, owners=(witness,))
    del witness
    launched = [0, 0]

    def replay(which: int) -> None:
        while True:
            try:
                graph.launch(streams[which])
            except GraphStateError:
                return
            launched[which] += 1

    threads = [threading.Thread(target=replay, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    graph.reset()
    for thread in threads:
        thread.join(10)
    assert seen == [True]
    assert rig.word() == sum(launched) > 0


# ---- R4: native replayers ----


def test_lent_graph_is_not_reset(rig: Rig) -> None:
    owner = Plain()
    graph = record(rig, owners=(owner,))
    lease = graph.lease()
    with pytest.raises(GraphStateError) as refused:
        graph.reset()
    assert "did not drain" in refused.value.found
    assert graph.recorded
    assert graph.owners == (owner,)
    graph.launch(stream := rig.device.create_stream())
    stream.synchronize()
    lease.drain()
    graph.reset()
    assert not graph.recorded


def test_lease_drain_waits(rig: Rig) -> None:
    streams = two_streams(rig)
    graph = record(rig)
    lease = graph.lease()
    for stream in streams:  # work of native code, of which the graph knows nothing
        rig.spin(stream, KERNEL_MS)
    assert not all(stream.query() for stream in streams)
    lease.drain()
    assert all(stream.query() for stream in streams)


def test_drained_lease_cannot_be_used(rig: Rig) -> None:
    graph = record(rig)
    lease = graph.lease()
    assert lease.executable.in_flight == 0
    lease.drain()
    lease.drain()
    with pytest.raises(GraphStateError):
        _ = lease.executable
    graph.reset()


def test_each_lease_must_be_drained(rig: Rig) -> None:
    graph = record(rig)
    first, second = graph.lease(), graph.lease()
    first.drain()
    with pytest.raises(GraphStateError):
        graph.reset()
    second.drain()
    graph.reset()


def test_graph_lives_as_long_as_its_lease(rig: Rig) -> None:
    owner = Plain()
    watched = weakref.ref(owner)
    lease = record(rig, owners=(owner,)).lease()
    del owner
    gc.collect()
    assert watched() is not None
    lease.drain()
    del lease
    gc.collect()
    assert watched() is None


def test_template_cannot_be_lent(rig: Rig) -> None:
    graph = record(rig, retain="template")
    with pytest.raises(GraphStateError):
        graph.lease()
    graph.instantiate().lease().drain()


@pytest.fixture(params=["cuda", pytest.param("gpu", marks=pytest.mark.gpu)])
def lending(request: pytest.FixtureRequest) -> Rig:
    """A device whose executables native code can launch."""
    made: Rig = request.getfixturevalue(request.param)
    return made


def test_native_code_launches_a_lent_executable_as_the_graph_does(lending: Rig) -> None:
    graph, stream = record(lending), lending.device.create_stream()
    for _ in range(20):
        graph.launch(stream)
    graph.drain()
    assert lending.word() == lending.counter("launches") == 20
    lease = graph.lease()
    replayer = Replayer(lease.executable.handle, 20)
    replayer.stop()
    lease.drain()
    assert (lending.word(), lending.counter("launches")) == (40, 20)
    graph.reset()


def test_graph_is_not_reset_under_native_launches(lending: Rig) -> None:
    graph = record(lending, milliseconds=KERNEL_MS)
    lease = graph.lease()
    replayer = Replayer(lease.executable.handle, 2)
    with pytest.raises(GraphStateError) as refused:
        graph.reset()
    assert "did not drain" in refused.value.found
    replayer.stop()
    assert lending.word() < 2
    lease.drain()
    assert lending.word() == 2
    graph.reset()
    assert not graph.recorded


def test_host_executable_has_no_handle(host: Rig) -> None:
    graph = record(host)
    lease = graph.lease()
    with pytest.raises(UsageError):
        _ = lease.executable.handle
    lease.executable.launch(host.stream)
    lease.drain()
    assert host.word() == 1


# ---- in processes of their own ----

SCRIPT = """
import sys, weakref, gc
from rigs import RIGS
from witness import Witness
from heliograph.capture.export_graph import record_export_graph

rig = RIGS[sys.argv[1]]()
streams = [rig.device.create_stream() for _ in range(2)]
witness = Witness(*streams)
witness.seen = None
class Out:
    def append(self, idle): print("owner finalised, idle:", idle, flush=True)
witness._report = Out()
graph = record_export_graph(
    lambda: rig.spin(streams[0], 200), stream=streams[0], pools=[rig.pool], owners=[witness], retain="executable"
)
"""
EXIT = """
for stream in streams:
    graph.launch(stream)
# An owner's finaliser that was registered after the graph's runs before it at exit.
weakref.finalize(witness, lambda: print("late finaliser, idle:", all(s.query() for s in streams), flush=True))
del witness
print("busy:", not any(s.query() for s in streams), flush=True)
"""
FORGOTTEN = """
del witness
lease = graph.lease()
lease.executable.launch(streams[0])
kept = weakref.ref(graph)
sys.unraisablehook = lambda args: print("unraisable:", args.exc_type.__name__, flush=True)
del graph, lease
gc.collect()
print("collected:", kept() is None, flush=True)
"""
FORGOTTEN_NATIVELY = "from replayer import Replayer" + FORGOTTEN.replace(
    "lease.executable.launch(streams[0])", "Replayer(lease.executable.handle, 1).stop()"
)
DRAINED = FORGOTTEN.replace("del graph, lease", "lease.drain()\ndel graph, lease")


EVERYWHERE = pytest.mark.parametrize(
    "rig_name", [pytest.param(name, marks=[pytest.mark.gpu] * (name == "gpu")) for name in RIGS]
)


def run_script(rig_name: str, library: Path, report: Path, body: str) -> list[str]:
    environment = {
        **os.environ,
        "HELIOGRAPH_LIBCUDA": "" if rig_name == "gpu" else str(library),
        "FAKE_CUDA_REPORT": str(report),
        "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parent.parent)]),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + body, rig_name], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@EVERYWHERE
def test_exit_drains(rig_name: str, fake_cuda_session: FakeCuda, tmp_path: Path) -> None:
    report = tmp_path / "report"
    lines = run_script(rig_name, fake_cuda_session.path, report, EXIT)
    assert lines == ["busy: True", "late finaliser, idle: True", "owner finalised, idle: True"]
    if rig_name == "fake-cuda":
        left = dict(line.split(" ", 1) for line in report.read_text().splitlines() if " " in line)
        assert left["executables"] == left["graphs"] == left["destroyed_in_flight"] == "0"
        assert left["misuse"] == ""


@EVERYWHERE
def test_forgotten_lease_keeps_memory(rig_name: str, fake_cuda_session: FakeCuda, tmp_path: Path) -> None:
    lines = run_script(rig_name, fake_cuda_session.path, tmp_path / "report", FORGOTTEN)
    assert lines == ["unraisable: GraphStateError", "collected: True"]


@pytest.mark.parametrize("rig_name", ["fake-cuda", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_lease_that_native_code_forgot_keeps_memory(rig_name: str, fake_cuda_session: FakeCuda, tmp_path: Path) -> None:
    report = tmp_path / "report"
    lines = run_script(rig_name, fake_cuda_session.path, report, FORGOTTEN_NATIVELY)
    assert lines == ["unraisable: GraphStateError", "collected: True"]
    if rig_name == "fake-cuda":
        assert "destroyed_in_flight 0" in report.read_text().splitlines()


@EVERYWHERE
def test_drained_lease_frees_memory(rig_name: str, fake_cuda_session: FakeCuda, tmp_path: Path) -> None:
    lines = run_script(rig_name, fake_cuda_session.path, tmp_path / "report", DRAINED)
    assert lines == ["owner finalised, idle: True", "collected: True"]
