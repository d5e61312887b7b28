"""A graph of somebody else's, stored in columns, rebuilt from them, read back and compared field by field."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from fake_cuda.control import FakeCuda
from fake_cuda.foreign import Foreign
from heliograph._native import CudaDevice, Function, SealedImage, Template, build_template, compare_template
from heliograph.core.columns import read_columns
from heliograph.core.templates import (
    CopyNode,
    Edge,
    EmptyNode,
    GraphTemplate,
    KernelNode,
    MemsetNode,
    Node,
    encode_catalogue,
)
from heliograph.errors import DriverError, FormatError
from rigs import Rig

IMAGE = b"fake-image sm_90\nmixed 0:1 4:12 16:2 24:8\nnothing\ntiled 0:8\n"
NAMES = ("mixed", "nothing", "tiled")
PROGRAMMATIC = bytes([1, 0, 1, 0, 0, 0, 0, 0])


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


@pytest.fixture
def foreign(fake_cuda: FakeCuda, cuda: Rig) -> Iterator[Foreign]:
    made = Foreign(fake_cuda)
    yield made
    made.close()


@dataclass
class Stored:
    columns: dict[str, memoryview]
    functions: list[Function]

    def build(self, device: CudaDevice) -> Template:
        return build_template(device, self.columns, 0, self.functions)

    def compare(self, template: Template) -> None:
        compare_template(template, self.columns, 0, self.functions)


def store(graph: GraphTemplate, functions: list[Function]) -> Stored:
    return Stored(dict(read_columns(encode_catalogue([graph], [()] * len(functions), []))), functions)


def odd_graph(foreign: Foreign, base: int) -> int:
    """Some of everything that is kept."""
    library = foreign.library(IMAGE)
    mixed, nothing, tiled = (foreign.kernel(library, name) for name in NAMES)
    pieces = [bytes([i] * size) for i, size in enumerate((1, 12, 2, 8), start=1)]
    graph = foreign.graph()
    nodes = [
        foreign.launch(graph, kernel=mixed, params=pieces, grid=(8, 2, 3), block=(4, 5, 6)),
        foreign.launch(graph, kernel=mixed, buffer=bytes(range(1, 33)), grid=(16, 1, 1)),
        foreign.launch(graph, kernel=nothing, grid=(16, 1, 1)),
        foreign.memset(graph, base, 0xABCD, element=2, width=4, height=3, pitch=64),
        foreign.copy(graph, base + 512, base, 32),
        foreign.record(graph, 1),
        foreign.wait(graph, 1),
    ]
    foreign.set_function(foreign.function(nothing), 14, 1)
    foreign.attribute(nodes[1], 2, words(1))
    foreign.attribute(nodes[1], 8, words(-2))
    foreign.attribute(nodes[2], 4, words(16, 1, 1))
    foreign.attribute(nodes[2], 9, b"\1\0")
    inner = foreign.graph()
    foreign.set_kernel(tiled, 8, 100 << 10)
    foreign.set_function(foreign.function(tiled), 8, 64 << 10)
    foreign.launch(inner, kernel=tiled, params=[bytes(8)], shared=60 << 10)
    child = foreign.child(graph, inner)
    for number, data in ((0, PROGRAMMATIC), (1, bytes(8))):
        foreign.edge(graph, nodes[number], nodes[2], data)
    foreign.edge(graph, nodes[2], nodes[3])
    foreign.edge(graph, nodes[3], nodes[4])
    foreign.edge(graph, nodes[4], nodes[5])
    foreign.edge(graph, nodes[6], child)
    return graph


def described(template: Template) -> GraphTemplate:
    nodes: list[Node] = []
    for node in template.nodes():
        if node.function is not None:
            number = NAMES.index(node.function.name)
            launch = KernelNode("", number, node.grid, node.block, node.shared_bytes, node.form, node.params)
            nodes.append(replace(launch, attrs=tuple(node.attrs)))
        elif node.kind == 1:
            nodes.append(CopyNode("", node.address, 0, 0, node.source, 0, 0, node.size))
        elif node.kind == 2:
            memset = MemsetNode("", node.address, 0, 0, node.width, node.value, node.element, node.height, node.pitch)
            nodes.append(memset)
        else:
            nodes.append(EmptyNode(""))
    return GraphTemplate(tuple(nodes), tuple(Edge(*edge) for edge in template.edges()))


def device(rig: Rig) -> CudaDevice:
    assert isinstance(rig.device, CudaDevice)
    return rig.device


def functions(rig: Rig) -> list[Function]:
    module = rig.device.load_module(SealedImage("text", IMAGE))
    return [module.function(name) for name in NAMES]


@pytest.mark.parametrize("fault", [True, False], ids=["with the edge fault", "without it"])
def test_graph_is_rebuilt_as_it_was(fake_cuda: FakeCuda, cuda: Rig, foreign: Foreign, fault: bool) -> None:
    fake_cuda.edge_fault(fault)
    fake_cuda.padding(1)
    borrowed = device(cuda).borrow_template(odd_graph(foreign, cuda.pool.address))
    graph = described(borrowed)
    assert [type(node).__name__ for node in graph.nodes] == [
        "KernelNode", "KernelNode", "KernelNode", "MemsetNode", "CopyNode", "EmptyNode", "EmptyNode", "KernelNode",
    ]  # fmt: skip
    stored = store(graph, functions(cuda))
    for function in borrowed.nodes()[7:]:
        assert function.function is not None
        stored.functions[2].raise_attributes(function.function.attributes)
    template = stored.build(device(cuda))
    stored.compare(template)
    assert described(template) == graph
    assert dict(stored.functions[2].attributes)[8] == 100 << 10
    assert dict(stored.functions[1].attributes)[14] == 1  # consent to 16 blocks a cluster
    template.instantiate(8).launch(cuda.stream)
    cuda.stream.synchronize()


def changes(graph: GraphTemplate) -> dict[str, GraphTemplate]:
    """For each thing that is compared, a graph in which it alone is another."""
    first, second, third, memset, copy, *_ = graph.nodes
    assert isinstance(first, KernelNode)
    assert isinstance(second, KernelNode)
    assert isinstance(third, KernelNode)
    assert isinstance(memset, MemsetNode)
    assert isinstance(copy, CopyNode)

    def swap(number: int, node: Node) -> GraphTemplate:
        return replace(graph, nodes=(*graph.nodes[:number], node, *graph.nodes[number + 1 :]))

    edges = graph.edges
    return {
        "nodes": replace(graph, nodes=(*graph.nodes, EmptyNode(""))),
        "edges": replace(graph, edges=edges[:-1]),
        "kind": swap(5, replace(memset, address=memset.address + 256)),
        "function": swap(2, replace(third, function=2)),
        "launch grid": swap(0, replace(first, grid=(8, 2, 4))),
        "launch block": swap(0, replace(first, block=(4, 5, 7))),
        "launch shared": swap(0, replace(first, shared=16)),
        "form": swap(0, replace(first, form=1)),
        "parameters": swap(0, replace(first, params=b"\x07" + first.params[1:])),
        "attributes value": swap(1, replace(second, attrs=((2, words(1)), (8, words(-1))))),
        "attributes missing": swap(1, replace(second, attrs=second.attrs[:1])),
        "memset value": swap(3, replace(memset, value=1)),
        "memset element": swap(3, replace(memset, element=4)),
        "memset width": swap(3, replace(memset, width=5)),
        "memset height": swap(3, replace(memset, height=2)),
        "memset pitch": swap(3, replace(memset, pitch=128)),
        "memset address": swap(3, replace(memset, address=memset.address + 8)),
        "copy to": swap(4, replace(copy, to=copy.to + 8)),
        "copy source": swap(4, replace(copy, source=copy.source + 8)),
        "copy size": swap(4, replace(copy, size=8)),
        "edge data": replace(graph, edges=(replace(edges[0], data=bytes(8)), *edges[1:])),
        "edge source": replace(graph, edges=(*edges[:-1], replace(edges[-1], source=0))),
    }


def test_what_differs_is_named(cuda: Rig, foreign: Foreign) -> None:
    borrowed = device(cuda).borrow_template(odd_graph(foreign, cuda.pool.address))
    graph = described(borrowed)
    ours = functions(cuda)
    template = store(graph, ours).build(device(cuda))
    for what, other in changes(graph).items():
        with pytest.raises(DriverError) as told:
            store(other, ours).compare(template)
        assert what.split()[0] in told.value.found, what
    store(graph, ours).compare(template)


def test_driver_that_spreads_the_first_edge_record_would_be_found_out(
    fake_cuda: FakeCuda, cuda: Rig, foreign: Foreign
) -> None:
    graph = described(device(cuda).borrow_template(odd_graph(foreign, cuda.pool.address)))
    stored = store(graph, functions(cuda))
    spread = tuple(replace(edge, data=PROGRAMMATIC if edge.target == 2 else edge.data) for edge in graph.edges)
    with pytest.raises(DriverError):
        stored.compare(store(replace(graph, edges=spread), stored.functions).build(device(cuda)))


@pytest.mark.parametrize(
    ("column", "value"), [("kernel.form", b"\x02"), ("kernel.attrs", bytes(8) + b"\xff\xff\xff\xff")]
)
def test_columns_that_were_not_checked_are_still_no_danger(
    cuda: Rig, foreign: Foreign, column: str, value: bytes
) -> None:
    graph = described(device(cuda).borrow_template(odd_graph(foreign, cuda.pool.address)))
    stored = store(graph, functions(cuda))
    stored.columns[column] = memoryview(value + bytes(stored.columns[column])[len(value) :])
    with pytest.raises(FormatError):
        stored.build(device(cuda))
