"""Graphs as data: nodes, edges, references, and the columns of graphs.safetensors they are stored in."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from heliograph.core.columns import write_columns
from heliograph.core.format import COLUMNS

_CODES: Final[Mapping[str, Literal["B", "I", "i", "Q", "q"]]] = {
    "U8": "B",
    "U32": "I",
    "I32": "i",
    "U64": "Q",
    "I64": "q",
}
_OFFSETS: Final = frozenset(
    {
        "graph.nodes",
        "graph.edges",
        "graph.collectives",
        "kernel.params",
        "kernel.refs",
        "kernel.attrs",
        "function.attrs",
        "string.offsets",
    }
)


@dataclass(frozen=True, slots=True)
class Ref:
    """A pointer in a node's parameters: ``buffer`` is an index into core.json's buffers."""

    at: int  # byte offset in the parameters
    buffer: int
    offset: int  # byte offset in the buffer; its size (one past the end) is allowed


@dataclass(frozen=True, slots=True)
class KernelNode:
    origin: str  # what recorded it: model path, op, line
    function: int  # index into core.json's functions
    grid: tuple[int, int, int]
    block: tuple[int, int, int] = (1, 1, 1)
    shared: int = 0
    form: int = 0  # 0 array of pointers, 1 one buffer
    params: bytes = b""  # literal bytes, pointers included
    refs: tuple[Ref, ...] = ()
    attrs: tuple[tuple[int, bytes], ...] = ()  # (id, value of up to 64 bytes)


@dataclass(frozen=True, slots=True)
class MemsetNode:
    origin: str
    address: int
    buffer: int
    offset: int
    width: int  # elements
    value: int = 0
    element: int = 1  # bytes of an element: 1, 2, 4
    height: int = 1
    pitch: int = 0  # bytes from row to row; 0 when height is 1


@dataclass(frozen=True, slots=True)
class CopyNode:
    origin: str
    to: int  # address
    to_buffer: int
    to_offset: int
    source: int  # address
    source_buffer: int
    source_offset: int
    size: int


@dataclass(frozen=True, slots=True)
class EmptyNode:
    origin: str


Node = KernelNode | MemsetNode | CopyNode | EmptyNode


@dataclass(frozen=True, slots=True)
class Edge:
    source: int  # node number in its graph; source < target
    target: int
    data: bytes = bytes(8)


@dataclass(frozen=True, slots=True)
class GraphTemplate:
    """Nodes in capture order; edges in any order (they are stored by target, then source)."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    flags: int = 0
    collectives: tuple[tuple[int, int], ...] = ()  # (node of the collective, node that consumes its result)


KIND_KERNEL, KIND_COPY, KIND_MEMSET, KIND_EMPTY = 0, 1, 2, 5
ATTR_BYTES = 64


def encode_catalogue(
    graphs: Sequence[GraphTemplate],
    function_attrs: Sequence[Sequence[tuple[int, int]]],
    chunk_digests: Sequence[bytes],
) -> bytes:
    """graphs.safetensors. ``function_attrs``: for each function of core.json its (id, value) pairs;
    ``chunk_digests``: BLAKE3 of each 4 MiB chunk of the weights image, as ``DraftWriter.put_weights`` gives them."""
    table = _Table()
    for graph in graphs:
        table.add_graph(graph)
    for attrs in function_attrs:
        for number, value in sorted(attrs):
            table.add("function.attr", id=number, value=value)
        table.columns["function.attrs"].append(len(table.columns["function.attr.id"]))
    raw = {"param.bytes": b"".join(table.params), "weights.chunks": b"".join(chunk_digests)}
    raw["string.bytes"] = "".join(table.strings).encode()
    for name, values in table.columns.items():
        raw[name] = struct.pack(f"<{len(values)}{_CODES[COLUMNS[name][0]]}", *values)
    return write_columns(raw)


class _Table:
    """Columns under construction, as lists of integers; a column of offsets starts with its 0."""

    def __init__(self) -> None:
        self.columns: dict[str, list[int]] = {name: [0] if name in _OFFSETS else [] for name in COLUMNS}
        for name in ("param.bytes", "weights.chunks", "string.bytes"):
            del self.columns[name]
        self.params: list[bytes] = []
        self.param_bytes = 0
        self.strings: dict[str, int] = {}
        self.string_bytes = 0

    def add(self, table: str, **values: int) -> None:
        for name, value in values.items():
            self.columns[f"{table}.{name.replace('_', '.')}"].append(value)

    def string(self, text: str) -> int:
        if text not in self.strings:
            self.strings[text] = len(self.strings)
            self.string_bytes += len(text.encode())
            self.columns["string.offsets"].append(self.string_bytes)
        return self.strings[text]

    def add_graph(self, graph: GraphTemplate) -> None:
        for order, node in enumerate(graph.nodes):
            self.add_node(order, node)
        for edge in sorted(graph.edges, key=lambda edge: (edge.target, edge.source)):
            self.columns["edge.from"].append(edge.source)
            self.columns["edge.to"].append(edge.target)
            self.columns["edge.data"].extend(edge.data)
        for node_number, consumer in sorted(graph.collectives):
            self.add("collective", node=node_number, consumer=consumer)
        self.columns["graph.nodes"].append(len(self.columns["node.kind"]))
        self.columns["graph.edges"].append(len(self.columns["edge.from"]))
        self.columns["graph.collectives"].append(len(self.columns["collective.node"]))
        self.columns["graph.flags"].append(graph.flags)

    def add_node(self, order: int, node: Node) -> None:
        kind, row = KIND_EMPTY, 0
        if isinstance(node, KernelNode):
            kind, row = KIND_KERNEL, len(self.columns["kernel.function"])
            self.add_kernel(node)
        elif isinstance(node, MemsetNode):
            kind, row = KIND_MEMSET, len(self.columns["memset.address"])
            fields = ("address", "value", "element", "width", "height", "pitch", "buffer", "offset")
            self.add("memset", **{name: getattr(node, name) for name in fields})
        elif isinstance(node, CopyNode):
            kind, row = KIND_COPY, len(self.columns["copy.to"])
            self.add("copy", to=node.to, to_buffer=node.to_buffer, to_offset=node.to_offset, bytes=node.size)
            self.columns["copy.from"].append(node.source)
            self.columns["copy.from.buffer"].append(node.source_buffer)
            self.columns["copy.from.offset"].append(node.source_offset)
        self.add("node", kind=kind, row=row, order=order, origin=self.string(node.origin))

    def add_kernel(self, node: KernelNode) -> None:
        self.add("kernel", function=node.function, shared=node.shared, form=node.form)
        self.columns["kernel.grid"].extend(node.grid)
        self.columns["kernel.block"].extend(node.block)
        self.params.append(node.params)
        self.param_bytes += len(node.params)
        self.columns["kernel.params"].append(self.param_bytes)
        for ref in sorted(node.refs, key=lambda ref: ref.at):
            self.add("ref", at=ref.at, buffer=ref.buffer, offset=ref.offset)
        self.columns["kernel.refs"].append(len(self.columns["ref.at"]))
        for number, value in sorted(node.attrs):
            if len(value) > ATTR_BYTES:
                raise ValueError(f"attribute {number} has {len(value)} bytes; {ATTR_BYTES} fit")
            self.add("attr", id=number)
            self.columns["attr.value"].extend(value.ljust(ATTR_BYTES, b"\0"))
        self.columns["kernel.attrs"].append(len(self.columns["attr.id"]))


def decode_catalogue(columns: Mapping[str, memoryview]) -> tuple[GraphTemplate, ...]:
    """The graphs of checked columns (``VerifiedCore.columns``), for tools: plain Python, every value copied out."""
    return _Reader(columns).graphs()


class _Reader:
    """Checked columns as sequences of integers."""

    def __init__(self, columns: Mapping[str, memoryview]) -> None:
        self.raw = columns
        self.columns = {name: columns[name].cast("B").cast(_CODES[dtype]) for name, (dtype, _) in COLUMNS.items()}

    def span(self, name: str, row: int) -> range:
        return range(self.columns[name][row], self.columns[name][row + 1])

    def graphs(self) -> tuple[GraphTemplate, ...]:
        column = self.columns
        return tuple(
            GraphTemplate(
                nodes=tuple(self.node(number) for number in self.span("graph.nodes", graph)),
                edges=tuple(
                    Edge(column["edge.from"][e], column["edge.to"][e], bytes(self.raw["edge.data"][8 * e : 8 * e + 8]))
                    for e in self.span("graph.edges", graph)
                ),
                flags=column["graph.flags"][graph],
                collectives=tuple(
                    (column["collective.node"][q], column["collective.consumer"][q])
                    for q in self.span("graph.collectives", graph)
                ),
            )
            for graph in range(len(column["graph.flags"]))
        )

    def string(self, number: int) -> str:
        places = self.span("string.offsets", number)
        return bytes(self.raw["string.bytes"][places.start : places.stop]).decode()

    def node(self, number: int) -> Node:
        kind, row = self.columns["node.kind"][number], self.columns["node.row"][number]
        origin = self.string(self.columns["node.origin"][number])
        if kind == KIND_KERNEL:
            return self.kernel(row, origin)
        if kind == KIND_MEMSET:
            fields = ("address", "value", "element", "width", "height", "pitch", "buffer", "offset")
            return MemsetNode(origin=origin, **{name: self.columns[f"memset.{name}"][row] for name in fields})
        if kind == KIND_COPY:
            places = ("to", "to.buffer", "to.offset", "from", "from.buffer", "from.offset", "bytes")
            return CopyNode(origin, *(self.columns[f"copy.{name}"][row] for name in places))
        return EmptyNode(origin)

    def kernel(self, row: int, origin: str) -> KernelNode:
        column = self.columns
        params, attrs = self.span("kernel.params", row), self.span("kernel.attrs", row)
        grid, block = column["kernel.grid"][3 * row : 3 * row + 3], column["kernel.block"][3 * row : 3 * row + 3]
        return KernelNode(
            origin=origin,
            function=column["kernel.function"][row],
            grid=(grid[0], grid[1], grid[2]),
            block=(block[0], block[1], block[2]),
            shared=column["kernel.shared"][row],
            form=column["kernel.form"][row],
            params=bytes(self.raw["param.bytes"][params.start : params.stop]),
            refs=tuple(
                Ref(column["ref.at"][r], column["ref.buffer"][r], column["ref.offset"][r])
                for r in self.span("kernel.refs", row)
            ),
            attrs=tuple(
                (column["attr.id"][a], bytes(self.raw["attr.value"][ATTR_BYTES * a : ATTR_BYTES * (a + 1)]))
                for a in attrs
            ),
        )
