"""What a CUDA graph holds and a core cannot keep: refused with graph, node, kernel and the line that recorded it.

The capture's own code, with a graph that the fake driver captures in place of PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from submitting import LINES, SUBMITTING, Submitting

from fake_cuda.control import FakeCuda
from fake_cuda.foreign import UNIFIED, Foreign
from heliograph._native import CudaDevice
from heliograph.capture.cuda.graphs import CudaGraph, recorded_nodes
from heliograph.capture.cuda.ops import OpSpan, lines_told
from heliograph.capture.cuda.record import CudaCapture
from heliograph.capture.spec import EntrySpec
from heliograph.errors import CaptureError, ForeignMemoryError
from rigs import MappedPool, Rig

IMAGE = b"fake-image sm_90\nnothing\n"
HOST, EMPTY, ALLOCATION = 3, 5, 10  # node types
UPDATABLE = 13  # a node attribute that is not kept
ENTRY = EntrySpec("step", ({"rows": 1},), {}, lambda model: {})
ORIGINS = [f"submit.{call} {line}" for call, line in enumerate(LINES)]
ELSEWHERE = 0x7000_0000_0000  # memory of somebody else


class CapturingGraph:
    """As PyTorch's: begins and ends the capture of a stream, and keeps the graph."""

    def __init__(self, foreign: Foreign, stream: int) -> None:
        self._foreign, self._stream, self._graph = foreign, stream, 0

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        self._foreign.begin_capture(self._stream)

    def capture_end(self) -> None:
        self._graph = self._foreign.end_capture(self._stream)

    def raw_cuda_graph(self) -> int:
        return self._graph


class ScratchPool(MappedPool):
    id = (0, 1)

    def told(self) -> nullcontext[None]:
        return nullcontext()


class Capturing:
    """Captures of `Submitting`: its first op launches a kernel, its second adds what a test wants to the graph."""

    def __init__(self, rig: Rig, foreign: Foreign, monkeypatch: pytest.MonkeyPatch) -> None:
        assert isinstance(rig.device, CudaDevice)
        self.device, self.foreign, self.pool = rig.device, foreign, rig.pool
        self.stream = foreign.stream()
        self.kernel = foreign.kernel(foreign.library(IMAGE), "nothing")
        self.pinned = self.device.pinned(4096)
        self.first = 0  # the node of the first op
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda keep_graph: CapturingGraph(foreign, self.stream))

    @property
    def graph(self) -> int:
        """The graph that is being captured."""
        return self.device.capture_info(self.stream)[0]

    def launch(self, graph: int | None = None) -> int:
        return self.foreign.launch(graph or self.graph, kernel=self.kernel)

    def _first(self) -> None:
        self.first = self.launch()

    def run(self, second: Callable[[Capturing], object]) -> CudaGraph:
        SUBMITTING[:] = [self._first, lambda: second(self)]
        model, x = Submitting(), torch.ones(4)
        places = SimpleNamespace(graph=lambda entry, bucket: None)
        capture: Any = CudaCapture.__new__(CudaCapture)
        vars(capture).update(
            model=model,
            spec=SimpleNamespace(slot=0),
            session=SimpleNamespace(device=self.device, images=None, regions={}),
            stream=SimpleNamespace(cuda_stream=self.stream),
            walk=SimpleNamespace(run=lambda entry, bucket: model(x), places=places, buffers=None),
            persistent=self.pool,
            scratch=ScratchPool("scratch", self.pool.owner, self.pool.ranges),
            graphs=[],
        )
        with torch.no_grad():
            capture._capture(ENTRY, ENTRY.buckets[0], "template", 0)
        (captured,) = capture.graphs
        assert isinstance(captured, CudaGraph)
        return captured


@pytest.fixture
def capturing(fake_cuda: FakeCuda, cuda: Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Capturing]:
    foreign = Foreign(fake_cuda)
    made = Capturing(cuda, foreign, monkeypatch)
    yield made
    foreign.close()
    vars(made).clear()


# What the second op adds to a graph: the one that is captured, or one inside it.
def host(at: Capturing, graph: int) -> None:
    at.foreign.node(graph, HOST)


def allocation(at: Capturing, graph: int) -> None:
    at.foreign.node(graph, ALLOCATION)


def pinned(at: Capturing, graph: int) -> None:
    at.foreign.copy(graph, at.pool.address, at.pinned.address, 64, types=(UNIFIED, UNIFIED))


def attribute(at: Capturing, graph: int) -> None:
    at.foreign.attribute(at.launch(graph), UPDATABLE, b"\x01")


def event(at: Capturing, graph: int) -> None:
    at.foreign.record(graph, 7)


def edge(at: Capturing, graph: int) -> None:
    """From the first op's kernel, or from one beside it."""
    source = at.first if graph == at.graph else at.launch(graph)
    at.foreign.edge(graph, source, at.launch(graph), bytes([0, 0, 2, 0, 0, 0, 0, 0]))


@pytest.mark.parametrize(
    ("add", "inside", "found"),
    [
        (host, "node 0: ", "a node of type HOST (3)"),
        (allocation, "node 0: ", "a node of type MEM_ALLOC (10)"),
        (pinned, "", "a source at {pinned}, pinned memory"),
        (attribute, "", "attribute DEVICE_UPDATABLE_KERNEL_NODE (13) on kernel nothing"),
        (event, "", "an event with 1 EVENT_RECORD (7) and 0 WAIT_EVENT (6) nodes in the graph"),
    ],
    ids=["host", "allocation", "pinned", "attribute", "event"],
)
@pytest.mark.parametrize("inner", [False, True], ids=["in the graph", "in a graph inside it"])
def test_what_cannot_be_kept_is_refused_with_graph_node_kernel_and_line(
    capturing: Capturing,
    add: Callable[[Capturing, int], object],
    inside: str,
    found: str,
    inner: bool,
) -> None:
    def second(at: Capturing) -> None:
        graph = at.foreign.graph() if inner else at.graph
        add(at, graph)
        if inner:
            at.foreign.child(at.graph, graph)

    with pytest.raises(CaptureError) as refused:
        capturing.run(second)
    found = found.format(pinned=hex(capturing.pinned.address))
    inside = inside if inner else ""
    assert refused.value.found == f"node 1: {inside}{found}, launched by {ORIGINS[1]}"
    assert refused.value.doing.startswith("recording graph 'step/1', ")
    kept = capturing.run(lambda at: at.foreign.node(at.graph, EMPTY))
    assert [kept.origin(node) for node in range(2)] == ORIGINS


def test_edges_are_refused_with_the_lines_of_both_nodes(capturing: Capturing) -> None:
    edges = "an edge of type 2 from port 0 to port 0, from kernel nothing to kernel nothing"
    with pytest.raises(CaptureError) as refused:
        capturing.run(lambda at: edge(at, at.graph))
    assert refused.value.found == f"node 0, node 1: {edges}, launched by {ORIGINS[0]} and by {ORIGINS[1]}"

    def second(at: Capturing) -> None:
        edge(at, graph := at.foreign.graph())
        at.foreign.child(at.graph, graph)

    with pytest.raises(CaptureError) as refused:
        capturing.run(second)
    assert refused.value.found == f"node 1: node 0, node 1: {edges}, launched by {ORIGINS[1]}"


@pytest.mark.parametrize("inner", [False, True], ids=["in the graph", "in a graph inside it"])
def test_memory_of_others_is_refused_with_graph_node_and_line(
    fake_cuda: FakeCuda, capturing: Capturing, inner: bool
) -> None:
    fake_cuda.memory_elsewhere(ELSEWHERE, 4096)

    def second(at: Capturing) -> None:
        graph = at.foreign.graph() if inner else at.graph
        at.foreign.copy(graph, at.pool.address, at.pool.address + 64, 64)
        at.foreign.copy(graph, at.pool.address, ELSEWHERE, 64)
        if inner:
            at.foreign.child(at.graph, graph)

    with pytest.raises(ForeignMemoryError) as refused:
        capturing.run(second)
    assert "'step/1'" in refused.value.doing
    assert refused.value.found.startswith(f"the source of a copy of node 2 at {ELSEWHERE:#x}, in ")
    assert refused.value.found.endswith(f", launched by {ORIGINS[1]}")


def test_node_outside_all_ops_is_refused_without_a_line() -> None:
    error = CaptureError("reading a node", found="node 3: a node of type HOST (3)", required="none", hint="none")
    error.nodes = (3,)
    spans = (OpSpan(0, 3, "a", "a.0 line", ()),)
    with pytest.raises(CaptureError) as refused, lines_told("step/1", spans):
        raise error
    assert (refused.value.doing, refused.value.found) == ("recording graph 'step/1', reading a node", error.found)


def test_errors_about_no_node_are_left_as_they_are(capturing: Capturing) -> None:
    error = CaptureError("running a model", found="node 1: of its own", required="none", hint="none")

    def fails(at: Capturing) -> None:
        raise error

    with pytest.raises(CaptureError) as raised:
        capturing.run(fails)
    assert raised.value is error


def test_kernel_without_a_known_image_is_refused_with_graph_node_and_line() -> None:
    def number(function: object, shared: int) -> int:
        raise CaptureError("finding the image of kernel f", found="none behind its handle", required="it", hint="none")

    node: Any = SimpleNamespace(kind=0, function=object(), shared_bytes=0)
    graph: Any = SimpleNamespace(name="step/1")
    kernels: Any = SimpleNamespace(number=number, name=None)
    captured = CudaGraph(None, graph, (OpSpan(0, 1, "a", "a.0 line", ()),), (node,), (0,))  # type: ignore[arg-type]
    with pytest.raises(CaptureError) as refused:
        recorded_nodes(captured, kernels)
    assert refused.value.found == "node 0: none behind its handle, launched by a.0 line"
    assert refused.value.doing == "recording graph 'step/1', finding the image of kernel f"
