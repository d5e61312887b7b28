"""R1, R3, R6: recording a graph, refusing memory of others, and leaving nothing behind when it fails."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable

import pytest

from fake_cuda.control import FakeCuda
from heliograph.capture.export_graph import record_export_graph
from heliograph.device.graph import Graph
from heliograph.errors import (
    DriverError,
    FlagsError,
    ForeignMemoryError,
    GraphStateError,
    OwnerCycleError,
    UsageError,
)
from rigs import MappedPool, Rig
from witness import Plain


def kinds(graph: Graph) -> list[int]:
    return [node.kind for node in graph.template.nodes()]


# ---- what is recorded ----


def test_work_becomes_nodes_in_order_and_is_not_run(rig: Rig) -> None:
    address = rig.pool.address

    def work() -> None:
        rig.count(rig.stream, address, 3)
        rig.stream.memset(address + 64, 7, 8)
        rig.stream.memcpy(address + 128, address, 8)

    graph = record_export_graph(work, stream=rig.stream, pools=[rig.pool])
    assert kinds(graph) == [0, 2, 1]
    assert [edge[:2] for edge in graph.template.edges()] == [(0, 1), (1, 2)]
    assert rig.word() == 0
    graph.instantiate().launch(rig.stream)
    graph.drain()
    assert (rig.word(), rig.word(at=64), rig.word(at=128)) == (3, 0x0707070707070707, 3)


def test_forked_stream_becomes_part_of_the_graph(rig: Rig) -> None:
    other, forked, joined = rig.device.create_stream(), rig.device.create_event(), rig.device.create_event()

    def work() -> None:
        rig.count(rig.stream, rig.pool.address)
        rig.stream.record(forked)
        other.wait(forked)
        rig.count(other, rig.pool.address + 8)
        rig.count(rig.stream, rig.pool.address + 16)
        other.record(joined)
        rig.stream.wait(joined)
        rig.count(rig.stream, rig.pool.address + 24)

    graph = record_export_graph(work, stream=rig.stream, pools=[rig.pool], retain="executable")
    assert [edge[:2] for edge in graph.template.edges()] == [(0, 1), (0, 2), (1, 3), (2, 3)]
    assert not other.capturing
    graph.launch(rig.stream)
    graph.drain()
    assert [rig.word(at=at) for at in (0, 8, 16, 24)] == [1, 1, 1, 1]


def test_graph_is_bound_before_it_is_captured(rig: Rig) -> None:
    graph, owner = Graph("mine"), Plain()
    seen: list[object] = []

    def work() -> None:
        seen.extend([graph.owners, graph.pools])
        rig.count(rig.stream, rig.pool.address)

    assert record_export_graph(work, stream=rig.stream, pools=[rig.pool], owners=[owner], graph=graph) is graph
    assert seen == [(owner,), (rig.pool,)]


def test_collector_is_held_off(rig: Rig) -> None:
    seen: list[bool] = []

    def work() -> None:
        seen.append(gc.isenabled())
        rig.count(rig.stream, rig.pool.address)

    assert gc.isenabled()
    record_export_graph(work, stream=rig.stream, pools=[rig.pool])
    assert seen == [False]
    assert gc.isenabled()


def test_collector_that_was_off_stays_off(rig: Rig) -> None:
    gc.disable()
    try:
        record_export_graph(lambda: rig.count(rig.stream, rig.pool.address), stream=rig.stream, pools=[rig.pool])
        assert not gc.isenabled()
    finally:
        gc.enable()


# ---- misuse ----


def test_unknown_way_to_retain_is_refused(rig: Rig) -> None:
    def work() -> None:
        rig.count(rig.stream, rig.pool.address)

    with pytest.raises(UsageError):
        record_export_graph(work, stream=rig.stream, pools=[rig.pool], retain="both")  # type: ignore[arg-type]
    assert record_export_graph(work, stream=rig.stream, pools=[rig.pool], retain="template").recorded


def test_capturing_stream_is_refused(rig: Rig) -> None:
    def work() -> None:
        rig.count(rig.stream, rig.pool.address)

    rig.stream.begin_capture()
    with pytest.raises(GraphStateError):
        record_export_graph(work, stream=rig.stream, pools=[rig.pool])
    work()
    assert rig.stream.end_capture().node_count == 1
    assert record_export_graph(work, stream=rig.stream, pools=[rig.pool]).recorded


def test_recording_nothing_is_refused(rig: Rig) -> None:
    other = rig.device.create_stream()
    with pytest.raises(GraphStateError) as refused:
        record_export_graph(lambda: rig.count(other, rig.pool.address), stream=rig.stream, pools=[rig.pool])
    assert "no work" in refused.value.found
    assert not rig.stream.capturing
    assert record_export_graph(
        lambda: rig.count(other, rig.pool.address), stream=other, pools=[rig.pool]
    ).template.node_count


# ---- R6: memory of others ----


def test_plain_memory_is_refused_and_named(host: Rig) -> None:
    stream = host.device.create_stream()
    plain = ctypes.create_string_buffer(64)
    with pytest.raises(ForeignMemoryError) as refused:
        record_export_graph(lambda: host.count(stream, ctypes.addressof(plain)), stream=stream, pools=[host.pool])
    assert "parameter of count at byte 0 of node 0" in refused.value.found
    assert "C allocator" in refused.value.found
    assert "main" in refused.value.required
    record_export_graph(lambda: host.count(stream, host.pool.address), stream=stream, pools=[host.pool])


def test_memory_of_a_pool_that_was_not_handed_in_is_refused_and_named(host: Rig) -> None:
    stream = host.device.create_stream()
    second = host.make_pool("second", slot=3)

    def work() -> None:
        host.count(stream, host.pool.address)
        host.count(stream, second.address)

    with pytest.raises(ForeignMemoryError) as refused:
        record_export_graph(work, stream=stream, pools=[host.pool])
    assert "node 1" in refused.value.found
    assert "the io region of slot 3" in refused.value.found
    record_export_graph(work, stream=stream, pools=[host.pool, second])


def test_pool_without_an_owner_is_refused_and_named(rig: Rig) -> None:
    def work() -> None:
        rig.count(rig.stream, rig.pool.address)

    orphan = MappedPool("workspace", None, ((rig.pool.address, 64),))
    with pytest.raises(ForeignMemoryError) as refused:
        record_export_graph(work, stream=rig.stream, pools=[orphan])
    assert "'workspace'" in refused.value.found
    adopted = MappedPool("workspace", rig.pool.owner, ((rig.pool.address, 64),))
    record_export_graph(work, stream=rig.stream, pools=[adopted])


@pytest.mark.parametrize("part", ["fill", "copy from", "copy to"])
def test_copies_and_fills_must_lie_inside_pools(rig: Rig, part: str) -> None:
    start, size = rig.pool.address, 1024
    pool = MappedPool("first kilobyte", rig.pool.owner, ((start, size),))
    work: dict[str, Callable[[int], None]] = {
        "fill": lambda length: rig.stream.memset(start + size - 64, 1, length),
        "copy from": lambda length: rig.stream.memcpy(start, start + size - 64, length),
        "copy to": lambda length: rig.stream.memcpy(start + size - 64, start, length),
    }
    with pytest.raises(ForeignMemoryError):
        record_export_graph(lambda: work[part](65), stream=rig.stream, pools=[pool])
    assert record_export_graph(lambda: work[part](64), stream=rig.stream, pools=[pool]).recorded


def test_null_pointer_is_no_memory_of_others(host: Rig) -> None:
    stream = host.device.create_stream()
    assert record_export_graph(lambda: host.count(stream, 0), stream=stream, pools=[]).recorded


# ---- what is left after a failure ----


def fails(rig: Rig, how: str, owner: object, graph: Graph) -> None:
    def work() -> None:
        rig.count(rig.stream, rig.pool.address)
        if how == "memory":
            rig.stream.memset(0x1000, 0, 8)
        if how == "callable":
            raise RuntimeError("the model's own error")
        if how == "owner":
            vars(owner)["graph"] = graph

    flags = 2 if how == "flags" else 0
    record_export_graph(work, stream=rig.stream, pools=[rig.pool], owners=[owner], graph=graph, flags=flags)


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("callable", RuntimeError),
        ("memory", ForeignMemoryError),
        ("owner", OwnerCycleError),
        ("flags", FlagsError),
    ],
)
def test_failed_recording_leaves_nothing(rig: Rig, how: str, error: type[Exception]) -> None:
    owner, graph = Plain(), Graph("mine")
    watched = weakref.ref(owner)
    with pytest.raises(error):
        fails(rig, how, owner, graph)
    vars(owner).clear()
    del owner
    gc.collect()
    assert watched() is None
    assert not rig.stream.capturing
    assert not graph.recorded
    assert (graph.owners, graph.pools) == ((), ())
    again = record_export_graph(
        lambda: rig.count(rig.stream, rig.pool.address), stream=rig.stream, pools=[rig.pool], graph=graph
    )
    assert again.template.node_count == 1


def test_error_of_the_callable_is_not_hidden_by_that_of_the_capture(rig: Rig) -> None:
    other, forked = rig.device.create_stream(), rig.device.create_event()

    def work() -> None:
        rig.count(rig.stream, rig.pool.address)
        rig.stream.record(forked)
        other.wait(forked)
        rig.count(other, rig.pool.address)  # never joined: the capture cannot end well
        raise RuntimeError("the model's own error")

    with pytest.raises(RuntimeError, match="own error"):
        record_export_graph(work, stream=rig.stream, pools=[rig.pool])
    assert not rig.stream.capturing
    assert not other.capturing


@pytest.mark.parametrize("where", ["host", "cuda"])
def test_fork_that_is_not_joined_is_refused(where: str, request: pytest.FixtureRequest) -> None:
    rig: Rig = request.getfixturevalue(where)
    other, forked = rig.device.create_stream(), rig.device.create_event()

    def work(join: bool) -> None:
        rig.count(rig.stream, rig.pool.address)
        rig.stream.record(forked)
        other.wait(forked)
        rig.count(other, rig.pool.address)
        if join:
            other.record(forked)
            rig.stream.wait(forked)

    with pytest.raises({"host": GraphStateError, "cuda": DriverError}[where]) as refused:
        record_export_graph(lambda: work(False), stream=rig.stream, pools=[rig.pool])
    assert "not joined" in refused.value.found
    if where == "cuda":
        assert "CUDA_ERROR_STREAM_CAPTURE_UNJOINED" in refused.value.found
    assert record_export_graph(lambda: work(True), stream=rig.stream, pools=[rig.pool]).template.node_count == 2
    assert rig.counter("templates_live" if where == "cuda" else "executables_live") == 0


@pytest.mark.parametrize("call", ["cuStreamBeginCapture", "cuLaunchKernel", "cuStreamEndCapture", "cuGraphGetNodes"])
def test_failing_driver_call_leaves_nothing(fake_cuda: FakeCuda, cuda: Rig, call: str) -> None:
    stream = cuda.device.create_stream()
    before = fake_cuda.live()

    def work() -> None:
        cuda.count(stream, cuda.pool.address)

    fake_cuda.fail(call, "CUDA_ERROR_UNKNOWN")
    with pytest.raises(DriverError) as refused:
        record_export_graph(work, stream=stream, pools=[cuda.pool])
    assert "CUDA_ERROR_UNKNOWN" in refused.value.found
    assert call in refused.value.found
    if stream.capturing:  # the call that would have ended it was the one that failed
        stream.end_capture().close()
    assert fake_cuda.live() == before
    record_export_graph(work, stream=stream, pools=[cuda.pool])
