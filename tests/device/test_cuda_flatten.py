"""Graphs of somebody else's: flattened, borrowed and launched as they are; streams that somebody else owns."""

from __future__ import annotations

import gc
import itertools
import struct
from collections.abc import Iterator

import pytest

from fake_cuda.control import FakeCuda
from fake_cuda.foreign import Foreign
from heliograph._native import CudaDevice, SealedImage, Template
from heliograph.device.host import kernel_image
from heliograph.errors import CaptureError, DriverError, UsageError
from rigs import Rig

IMAGE = b"fake-image sm_90\nnothing\nsame\n"
EMPTY = 5
PLAIN = bytes(8)


@pytest.fixture
def foreign(fake_cuda: FakeCuda, cuda: Rig) -> Iterator[Foreign]:
    made = Foreign(fake_cuda)
    yield made
    made.close()


def chain(foreign: Foreign, graph: int, count: int) -> list[int]:
    """So many empty nodes, each behind the one before."""
    nodes = [foreign.node(graph, EMPTY) for _ in range(count)]
    for before, after in itertools.pairwise(nodes):
        foreign.edge(graph, before, after)
    return nodes


def pairs(template: Template) -> list[tuple[int, int]]:
    assert all(data == PLAIN for _, _, data in template.edges())
    return [(source, to) for source, to, _ in template.edges()]


def device(rig: Rig) -> CudaDevice:
    assert isinstance(rig.device, CudaDevice)
    return rig.device


# ---- graphs inside graphs ----


def test_nodes_of_an_inner_graph_take_its_place(cuda: Rig, foreign: Foreign) -> None:
    """0 -> [1, 2 -> 3] -> 4: edges in lead to the roots 1 and 2, edges out begin at the leaves 1 and 3."""
    inner = foreign.graph()
    foreign.node(inner, EMPTY)
    chain(foreign, inner, 2)
    outer = foreign.graph()
    first, child, last = foreign.node(outer, EMPTY), foreign.child(outer, inner), foreign.node(outer, EMPTY)
    foreign.edge(outer, first, child)
    foreign.edge(outer, child, last)
    template = device(cuda).borrow_template(outer)
    assert template.node_count == 5
    assert pairs(template) == [(0, 1), (0, 2), (2, 3), (1, 4), (3, 4)]
    assert template.top_level == [0, 1, 1, 1, 2]


def test_graphs_are_flattened_to_any_depth(cuda: Rig, foreign: Foreign) -> None:
    graph = foreign.graph()
    chain(foreign, graph, 2)
    for _ in range(5):
        outer = foreign.graph()
        before, child = foreign.node(outer, EMPTY), foreign.child(outer, graph)
        foreign.edge(outer, before, child)
        graph = outer
    template = device(cuda).borrow_template(graph)
    assert pairs(template) == [(i, i + 1) for i in range(6)]
    assert template.top_level == [0, 1, 1, 1, 1, 1, 1]


def test_two_inner_graphs_behind_each_other_stay_so(cuda: Rig, foreign: Foreign) -> None:
    inner = foreign.graph()
    foreign.node(inner, EMPTY)
    foreign.node(inner, EMPTY)
    outer = foreign.graph()
    first, second = foreign.child(outer, inner), foreign.child(outer, inner)
    foreign.edge(outer, first, second)
    assert pairs(device(cuda).borrow_template(outer)) == [(0, 2), (1, 2), (0, 3), (1, 3)]


def test_empty_inner_graph_still_orders_what_is_around_it(cuda: Rig, foreign: Foreign) -> None:
    outer = foreign.graph()
    first, child, last = foreign.node(outer, EMPTY), foreign.child(outer, foreign.graph()), foreign.node(outer, EMPTY)
    foreign.edge(outer, first, child)
    foreign.edge(outer, child, last)
    assert pairs(device(cuda).borrow_template(outer)) == [(0, 1), (1, 2)]


def test_edge_data_at_an_inner_graph_is_refused(cuda: Rig, foreign: Foreign) -> None:
    kernel = foreign.kernel(foreign.library(IMAGE), "nothing")
    inner, outer = foreign.graph(), foreign.graph()
    foreign.launch(inner, kernel=kernel)
    first, child = foreign.launch(outer, kernel=kernel), foreign.child(outer, inner)
    foreign.edge(outer, first, child, bytes([2, 0, 0, 0, 0, 0, 0, 0]))
    with pytest.raises(CaptureError) as refused:
        device(cuda).borrow_template(outer)
    assert refused.value.found.startswith("node 0, node 1: edge data on an edge to or from a graph inside")
    assert refused.value.nodes == (0, 1)
    plain = foreign.graph()
    first, child = foreign.launch(plain, kernel=kernel), foreign.child(plain, inner)
    foreign.edge(plain, first, child)
    assert pairs(device(cuda).borrow_template(plain)) == [(0, 1)]


def test_refused_type_in_an_inner_graph_is_refused(cuda: Rig, foreign: Foreign) -> None:
    inner, outer = foreign.graph(), foreign.graph()
    foreign.node(outer, EMPTY)
    for _ in range(2):
        foreign.node(inner, EMPTY)
    foreign.node(inner, 3)
    foreign.child(outer, inner)
    with pytest.raises(CaptureError) as refused:
        device(cuda).borrow_template(outer)
    assert refused.value.found == "node 1: node 2: a node of type HOST (3)"
    assert refused.value.nodes == (1,)


def test_flattened_graph_does_what_the_graph_does(cuda: Rig, foreign: Foreign) -> None:
    """Rebuilt from what was read, and launched as it is: both leave the same memory."""
    base = cuda.pool.address
    inner = foreign.graph()
    one = foreign.memset(inner, base, 0x11, element=1, width=8, height=1, pitch=0)
    two = foreign.copy(inner, base + 8, base, 8)
    foreign.edge(inner, one, two)
    outer = foreign.graph()
    child = foreign.child(outer, inner)
    after = foreign.copy(outer, base + 16, base + 8, 8)
    foreign.edge(outer, child, after)
    borrowed = device(cuda).borrow_template(outer)
    built = cuda.device.create_template()
    incoming: dict[int, list[int]] = {}
    for source, to, _ in borrowed.edges():
        incoming.setdefault(to, []).append(source)
    for number, node in enumerate(borrowed.nodes()):
        if node.kind == 1:
            built.add_memcpy(node.address, node.source, node.size, incoming.get(number, []))
        else:
            built.add_memset(node.address, node.value, node.size, incoming.get(number, []))
    assert built.edges() == borrowed.edges()
    for template in (borrowed, built):
        cuda.stream.memset(base, 0, 24)
        template.instantiate().launch(cuda.stream)
        cuda.stream.synchronize()
        assert [cuda.word(at=at) for at in (0, 8, 16)] == [0x1111111111111111] * 3


# ---- events ----


def test_event_with_both_ends_inside_is_two_empty_nodes_and_an_edge(cuda: Rig, foreign: Foreign) -> None:
    graph = foreign.graph()
    first, record = foreign.node(graph, EMPTY), foreign.record(graph, 7)
    wait, last = foreign.wait(graph, 7), foreign.node(graph, EMPTY)
    foreign.edge(graph, first, record)
    foreign.edge(graph, wait, last)
    template = device(cuda).borrow_template(graph)
    assert [node.kind for node in template.nodes()] == [EMPTY] * 4
    assert pairs(template) == [(0, 1), (1, 2), (2, 3)]


def test_event_may_be_waited_for_twice_and_across_inner_graphs(cuda: Rig, foreign: Foreign) -> None:
    inner, graph = foreign.graph(), foreign.graph()
    foreign.wait(inner, 7)
    foreign.record(graph, 7)
    foreign.wait(graph, 7)
    foreign.child(graph, inner)
    template = device(cuda).borrow_template(graph)
    assert pairs(template) == [(0, 1), (0, 2)]
    assert template.top_level == [0, 1, 2]


def test_nodes_added_in_another_order_are_moved_behind_what_they_wait_for(cuda: Rig, foreign: Foreign) -> None:
    graph = foreign.graph()
    wait, record = foreign.wait(graph, 7), foreign.record(graph, 7)
    last, first = foreign.node(graph, EMPTY), foreign.node(graph, EMPTY)
    foreign.edge(graph, first, record)
    foreign.edge(graph, wait, last)
    template = device(cuda).borrow_template(graph)
    assert template.top_level == [3, 1, 0, 2]
    assert pairs(template) == [(0, 1), (1, 2), (2, 3)]


@pytest.mark.parametrize(
    ("records", "waits"), [(1, 0), (0, 1), (2, 1), (2, 0)], ids=["no wait", "no record", "two records", "only records"]
)
def test_event_with_an_end_outside_is_refused(cuda: Rig, foreign: Foreign, records: int, waits: int) -> None:
    graph = foreign.graph()
    foreign.record(graph, 1)
    foreign.wait(graph, 1)
    assert device(cuda).borrow_template(graph).node_count == 2
    for _ in range(records):
        foreign.record(graph, 7)
    for _ in range(waits):
        foreign.wait(graph, 7)
    with pytest.raises(CaptureError) as refused:
        device(cuda).borrow_template(graph)
    nodes = tuple(range(2, 2 + records + waits))
    named = ", ".join(f"node {node}" for node in nodes)
    found = f"{named}: an event with {records} EVENT_RECORD (7) and {waits} WAIT_EVENT (6) nodes in the graph"
    assert refused.value.nodes == nodes
    assert refused.value.found == found


def test_event_waited_for_before_it_is_recorded_is_refused(cuda: Rig, foreign: Foreign) -> None:
    graph = foreign.graph()
    wait, record = foreign.wait(graph, 7), foreign.record(graph, 7)
    foreign.edge(graph, wait, record)
    with pytest.raises(CaptureError) as refused:
        device(cuda).borrow_template(graph)
    assert refused.value.found == "node 0, node 1: an event that is waited for before it is recorded"
    assert refused.value.nodes == (0, 1)


# ---- borrowing ----


def test_borrowed_graph_is_left_to_its_owner(fake_cuda: FakeCuda, cuda: Rig, foreign: Foreign) -> None:
    graph = foreign.graph()
    chain(foreign, graph, 3)
    before = fake_cuda.calls("cuGraphDestroy")
    template = device(cuda).borrow_template(graph)
    with pytest.raises(UsageError):
        template.add_empty()
    executable = template.instantiate(8)
    executable.launch(cuda.stream)
    executable.close()
    template.close()
    assert fake_cuda.calls("cuGraphDestroy") == before
    assert device(cuda).borrow_template(graph).node_count == 3


@pytest.mark.parametrize("graph", [0])
def test_no_graph_is_refused(cuda: Rig, graph: int) -> None:
    with pytest.raises(UsageError):
        device(cuda).borrow_template(graph)


def test_functions_of_others_have_names_and_no_module_and_are_found_once(cuda: Rig, foreign: Foreign) -> None:
    """Two functions of one name in two libraries are two; one that is launched twice is one, in two graphs too."""
    kernels = [foreign.kernel(foreign.library(IMAGE), "same") for _ in range(2)]
    graphs = [foreign.graph(), foreign.graph()]
    for graph in graphs:
        for kernel in kernels:
            foreign.launch(graph, kernel=kernel)
            foreign.launch(graph, function=foreign.function(kernel))
    templates = [device(cuda).borrow_template(graph) for graph in graphs]
    found = [[node.function for node in template.nodes()] for template in templates]
    assert found[0] == found[1]
    assert found[0][0] is found[0][1]
    assert found[0][2] is found[0][3]
    assert found[0][0] is not found[0][2]
    assert all(function and (function.name, function.module) == ("same", None) for function in found[0])


def test_functions_of_ours_keep_their_module_in_a_borrowed_graph(
    fake_cuda: FakeCuda, cuda: Rig, foreign: Foreign
) -> None:
    ours = cuda.device.load_module(SealedImage("private", kernel_image("generic", "probe"))).function("count")
    raw = foreign.stream()
    stream = device(cuda).borrow_stream(raw)
    foreign.begin_capture(raw)
    stream.launch(ours, (3, 1, 1), struct.pack("<Q", cuda.pool.address))
    del ours
    gc.collect()
    assert fake_cuda.live()["modules"] == 2
    template = device(cuda).borrow_template(foreign.end_capture(raw))
    stream.close()
    gc.collect()
    (node,) = template.nodes()
    assert node.function is not None
    assert node.function.module is not None
    executable = template.instantiate()
    executable.launch(cuda.stream)
    executable.drain()
    assert cuda.word() == 3
    template.close()
    del node, executable, template
    gc.collect()
    assert fake_cuda.live()["modules"] == 1


def test_borrowed_stream_is_left_to_its_owner(fake_cuda: FakeCuda, cuda: Rig, foreign: Foreign) -> None:
    raw = foreign.stream()
    stream = device(cuda).borrow_stream(raw)
    cuda.count(stream, cuda.pool.address)
    stream.synchronize()
    assert cuda.word() == 1
    before = fake_cuda.calls("cuStreamDestroy")
    stream.close()
    gc.collect()
    assert fake_cuda.calls("cuStreamDestroy") == before
    assert device(cuda).borrow_stream(raw).query()


def test_capture_info_counts_the_nodes_of_a_capture(cuda: Rig, foreign: Foreign) -> None:
    raw = foreign.stream()
    assert device(cuda).capture_info(raw) == (0, 0)
    foreign.begin_capture(raw)
    stream = device(cuda).borrow_stream(raw)
    graph, nodes = device(cuda).capture_info(raw)
    assert (graph != 0, nodes) == (True, 0)
    cuda.count(stream, cuda.pool.address)
    stream.memset(cuda.pool.address, 0, 8)
    assert device(cuda).capture_info(raw) == (graph, 2)
    assert foreign.end_capture(raw) == graph
    assert device(cuda).capture_info(raw) == (0, 0)


def test_invalidated_capture_is_told(cuda: Rig, foreign: Foreign) -> None:
    raw = foreign.stream()
    foreign.begin_capture(raw)
    with pytest.raises(DriverError):
        cuda.device.synchronize()
    with pytest.raises(DriverError) as told:
        device(cuda).capture_info(raw)
    assert "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED" in told.value.found
    with pytest.raises(RuntimeError):
        foreign.end_capture(raw)


def test_calls_that_break_a_capture_are_allowed_in_relaxed_mode(cuda: Rig, foreign: Foreign) -> None:
    raw = foreign.stream()
    foreign.begin_capture(raw)
    reservation = cuda.pool.owner
    assert reservation is not None
    size = cuda.device.granularity
    with device(cuda).relaxed():
        reservation.map(size, size)
    assert device(cuda).capture_info(raw)[1] == 0
    with pytest.raises(DriverError):
        reservation.map(2 * size, size)
    with pytest.raises(RuntimeError):
        foreign.end_capture(raw)
