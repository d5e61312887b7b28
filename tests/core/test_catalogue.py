"""What the columns of graphs.safetensors must mean: the native check and the independent reader, one lie at a time."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import independent_reader
from core.alter import altered
from heliograph import _native
from heliograph.core.catalogue import check_catalogue
from heliograph.core.columns import read_columns
from heliograph.core.format import COLUMNS, region_base
from heliograph.core.manifest import Core
from heliograph.core.templates import Edge, GraphTemplate, KernelNode, MemsetNode, Ref, decode_catalogue
from heliograph.errors import FormatError
from tiny_core import TinyCore, tiny_core

Table = dict[str, np.ndarray]
NUMPY = {"U8": "u1", "U32": "<u4", "U64": "<u8", "I64": "<i8"}


def table_of(parts: TinyCore) -> Table:
    """The columns as arrays that can be altered."""
    table = {}
    for name, data in read_columns(parts.graphs_bytes()).items():
        dtype, trailing = COLUMNS[name]
        column = np.frombuffer(bytes(data), dtype=NUMPY[dtype]).copy()
        table[name] = column.reshape(-1, *trailing)
    return table


def product_verdict(core: Core, table: Mapping[str, np.ndarray]) -> str:
    """The rule that the native check finds broken, or an empty text."""
    try:
        check_catalogue(core, {name: memoryview(column.tobytes()) for name, column in table.items()})
    except FormatError as error:
        return error.rule
    return ""


def independent_verdict(core: Core, table: Mapping[str, np.ndarray]) -> str:
    try:
        independent_reader.Catalogue(msgspec.json.decode(msgspec.json.encode(core)), dict(table)).check()
    except independent_reader.Refused as error:
        return error.rule
    return ""


def both(core: Core, table: Mapping[str, np.ndarray]) -> str:
    verdict = product_verdict(core, table)
    assert independent_verdict(core, table) == verdict
    return verdict


Lie = Callable[[Table], None]


def put(name: str, at: Any, value: Any) -> Lie:
    def tell(table: Table) -> None:
        table[name][at] = value

    return tell


def add(name: str, at: Any, value: int) -> Lie:
    def tell(table: Table) -> None:
        table[name][at] += np.array(value).astype(table[name].dtype)

    return tell


def drop(name: str) -> Lie:
    def tell(table: Table) -> None:
        table[name] = table[name][:-1]

    return tell


def grow(name: str, row: Any = 0) -> Lie:
    def tell(table: Table) -> None:
        table[name] = np.concatenate([table[name], np.full((1, *table[name].shape[1:]), row, table[name].dtype)])

    return tell


def swap(*names: str, rows: tuple[int, int]) -> Lie:
    def tell(table: Table) -> None:
        for name in names:
            table[name][list(rows)] = table[name][list(rows[::-1])]

    return tell


def all_of(*lies: Lie) -> Lie:
    def tell(table: Table) -> None:
        for lie in lies:
            lie(table)

    return tell


def rows(**columns: Any) -> Lie:
    """Whole columns, dots written as double underscores."""

    def tell(table: Table) -> None:
        for name, values in columns.items():
            name = name.replace("__", ".")
            table[name] = np.array(values, dtype=table[name].dtype).reshape(-1, *table[name].shape[1:])

    return tell


TEXT = np.frombuffer(b"\xff", dtype=np.uint8)[0]

# The small core's graphs have nodes memset, copy, copy, kernel, empty; edges 0-1, 1-2, 2-4, 3-4.
REFUSED: dict[str, tuple[str, Lie]] = {
    "offsets that do not begin with 0": ("M70", put("graph.nodes", 0, 1)),
    "offsets that descend": ("M70", put("kernel.params", 1, 24)),
    "offsets that end early": ("M70", add("string.offsets", -1, -1)),
    "offsets that end late": ("M70", add("kernel.refs", -1, 1)),
    "offsets beyond 32 bits": ("M70", put("kernel.params", 1, 1 << 63)),
    "an offset row missing": ("M70", drop("graph.edges")),
    "an offset row more": ("M70", grow("graph.nodes", 10)),
    "no string offsets": ("M70", rows(string__offsets=[])),
    "a graph with a node less than core.json says": ("M70", put("graph.nodes", 1, 4)),
    "a graph with other edges than core.json says": ("M70", put("graph.edges", 1, 3)),
    "other flags than core.json": ("M70", put("graph.flags", 0, 8)),
    "flags for a graph more": ("M70", grow("graph.flags")),
    "a node without origin": ("M70", drop("node.origin")),
    "a node without order": ("M70", drop("node.order")),
    "a node without row": ("M70", drop("node.row")),
    "a grid missing": ("M70", drop("kernel.grid")),
    "a block missing": ("M70", drop("kernel.block")),
    "a shared size missing": ("M70", drop("kernel.shared")),
    "a form missing": ("M70", drop("kernel.form")),
    "a reference without buffer": ("M70", drop("ref.buffer")),
    "a reference without offset": ("M70", drop("ref.offset")),
    "a memset without width": ("M70", drop("memset.width")),
    "a memset without value": ("M70", drop("memset.value")),
    "a copy without size": ("M70", drop("copy.bytes")),
    "a copy without source": ("M70", drop("copy.from")),
    "an edge without beginning": ("M70", drop("edge.from")),
    "an edge without data": ("M70", drop("edge.data")),
    "a collective without consumer": ("M70", grow("collective.node")),
    "an attribute without value": ("M70", grow("attr.id")),
    "a function attribute without value": ("M70", grow("function.attr.id")),
    "function offsets missing": ("M70", drop("function.attrs")),
    "collective offsets missing": ("M70", drop("graph.collectives")),
    "a node of an unknown kind": ("M71", put("node.kind", 4, 3)),
    "a node of kind 255": ("M71", put("node.kind", 0, 255)),
    "an empty node with a row": ("M71", put("node.row", 4, 1)),
    "a row twice": ("M71", put("node.row", 2, 0)),
    "a row that is left out": ("M71", put("node.row", 1, 1)),
    "a row beyond its table": ("M71", put("node.row", 3, 1 << 31)),
    "a kernel that no node names": ("M71", grow("kernel.function")),
    "a copy that no node names": ("M71", grow("copy.to")),
    "a memset that no node names": ("M71", grow("memset.address")),
    "a kernel node without kernel": ("M71", drop("kernel.function")),
    "a place in the order twice": ("M72", put("node.order", 1, 0)),
    "nodes out of order": ("M72", swap("node.order", rows=(1, 2))),
    "an order that goes on from the last graph": ("M72", put("node.order", slice(5, 10), range(5, 10))),
    "an origin that is no string": ("M73", put("node.origin", 0, 99)),
    "an origin in another encoding": ("M73", put("string.bytes", 0, TEXT)),
    "an origin cut within a letter": ("M73", put("string.bytes", -1, 0xC3)),
    "an overlong form": ("M73", put("string.bytes", slice(0, 2), [0xC0, 0xAF])),
    "a surrogate": ("M73", put("string.bytes", slice(0, 3), [0xED, 0xA0, 0x80])),
    "a letter beyond U+10FFFF": ("M73", put("string.bytes", slice(0, 4), [0xF4, 0x90, 0x80, 0x80])),
    "a function that is not there": ("M74", put("kernel.function", 0, 1)),
    "a grid of 0": ("M74", put("kernel.grid", (0, 0), 0)),
    "a block of 0": ("M74", put("kernel.block", (0, 2), 0)),
    "a grid of two dimensions on the host": ("M74", put("kernel.grid", (0, 1), 2)),
    "a block of threads on the host": ("M74", put("kernel.block", (0, 0), 32)),
    "shared memory on the host": ("M74", put("kernel.shared", 0, 1)),
    "one buffer as parameters on the host": ("M75", put("kernel.form", 0, 1)),
    "an unknown form": ("M75", put("kernel.form", 0, 2)),
    "a parameter byte more": ("M75", all_of(put("kernel.params", 1, 9))),
    "parameters of no bytes": ("M75", rows(kernel__params=[0, 0, 16])),
    "a reference beyond the parameters": ("M76", put("ref.at", 0, 1)),
    "a reference far beyond the parameters": ("M76", put("ref.at", 0, (1 << 32) - 4)),
    "a reference to a buffer that is not there": ("M76", put("ref.buffer", 0, 99)),
    "a reference behind its buffer": ("M76", put("ref.offset", 0, 9)),
    "a reference whose sum wraps": ("M76", put("ref.offset", 0, (1 << 64) - 8)),
    "one reference twice": ("M76", all_of(
        rows(kernel__refs=[0, 2, 3], ref__at=[0, 0, 0], ref__offset=[0, 0, 0]),
        lambda table: rows(ref__buffer=table["ref.buffer"][[0, 0, 1]])(table))),
    "another pointer than its reference": ("M77", add("param.bytes", 0, 1)),
    "a reference to another buffer than the pointer": ("M77", add("ref.buffer", 0, -1)),
    "a reference to another byte than the pointer": ("M77", put("ref.offset", 0, 8)),
    "a pointer without reference": ("M78", rows(kernel__refs=[0, 0, 0], ref__at=[], ref__buffer=[], ref__offset=[])),
    "an attribute on the host": ("M79", all_of(grow("attr.id", 1), grow("attr.value"), put("kernel.attrs", -1, 1))),
    "a function attribute on the host": ("M79", all_of(
        grow("function.attr.id", 1), grow("function.attr.value"), put("function.attrs", -1, 1))),
    "a memset of 3-byte elements": ("M80", put("memset.element", 0, 3)),
    "a memset of 0-byte elements": ("M80", put("memset.element", 0, 0)),
    "a memset of words on the host": ("M80", all_of(put("memset.element", 0, 2), put("memset.width", 0, 8))),
    "a memset value that does not fit": ("M80", put("memset.value", 0, 256)),
    "a memset of no columns": ("M80", put("memset.width", 0, 0)),
    "a memset of no rows": ("M80", put("memset.height", 0, 0)),
    "a memset of rows on the host": ("M80", all_of(put("memset.height", 0, 2), put("memset.pitch", 0, 16))),
    "a pitch for one row": ("M80", put("memset.pitch", 0, 16)),
    "a memset beyond its buffer": ("M80", put("memset.width", 0, 17)),
    "a memset that wraps": ("M80", put("memset.width", 0, (1 << 64) - 1)),
    "a memset from behind its buffer": ("M80", all_of(put("memset.offset", 0, 17), add("memset.address", 0, 17))),
    "a memset of a buffer that is not there": ("M80", put("memset.buffer", 0, 1 << 31)),
    "a memset elsewhere than its buffer": ("M80", add("memset.address", 0, 1)),
    "a copy of nothing": ("M81", put("copy.bytes", 0, 0)),
    "a copy beyond its target": ("M81", put("copy.bytes", 0, 17)),
    "a copy that wraps": ("M81", put("copy.bytes", 0, (1 << 64) - 1)),
    "a copy elsewhere than its target": ("M81", add("copy.to", 0, 1)),
    "a copy from elsewhere than its source": ("M81", add("copy.from", 0, 1)),
    "a copy with another target offset": ("M81", put("copy.to.offset", 0, 1)),
    "a copy with another source offset": ("M81", put("copy.from.offset", 0, 1)),
    "a copy to a buffer that is not there": ("M81", put("copy.to.buffer", 0, 99)),
    "a copy from a buffer that is not there": ("M81", put("copy.from.buffer", 0, 99)),
    "an edge to its own node": ("M83", put("edge.from", 0, 1)),
    "an edge backwards": ("M83", put("edge.from", 1, 3)),
    "an edge to another graph": ("M83", put("edge.to", 3, 5)),
    "an edge far away": ("M83", put("edge.to", 3, 1 << 31)),
    "an edge twice": ("M83", all_of(put("edge.from", 3, 2))),
    "edges out of order by source": ("M83", swap("edge.from", "edge.to", rows=(2, 3))),
    "edges out of order by target": ("M83", swap("edge.from", "edge.to", rows=(0, 1))),
    "edge data on the host": ("M84", put("edge.data", (0, 0), 1)),
    "edge data behind the known fields": ("M84", put("edge.data", (0, 7), 1)),
    "a collective that is its own consumer": ("M85", rows(
        graph__collectives=[0, 1, 1], collective__node=[3], collective__consumer=[3])),
    "a collective of a memset": ("M85", rows(
        graph__collectives=[0, 1, 1], collective__node=[0], collective__consumer=[3])),
    "a consumer that is not there": ("M85", rows(
        graph__collectives=[0, 1, 1], collective__node=[3], collective__consumer=[5])),
    "weights without chunk digest": ("M46", rows(weights__chunks=[])),
    "a chunk digest more": ("M46", grow("weights.chunks")),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_columns_that_lie_are_refused_by_both_readers(tiny: TinyCore, name: str) -> None:
    """M46, M70, M71, M72, M73, M74, M75, M76, M77, M78, M79, M80, M81, M83, M84, M85"""
    rule, lie = REFUSED[name]
    table = table_of(tiny)
    assert both(tiny.core, table) == ""
    lie(table)
    assert both(tiny.core, table) == rule


def test_a_function_that_no_node_launches_is_refused(tiny: TinyCore) -> None:
    """M74"""
    functions = (*tiny.core.functions, msgspec.structs.replace(tiny.core.functions[0], name="more"))
    core = msgspec.structs.replace(tiny.core, functions=functions)
    table = table_of(tiny.with_core(functions=functions))
    assert both(core, table) == "M74"
    table["kernel.function"][1] = 1
    assert both(core, table) == ""


def test_a_null_pointer_has_no_reference(tiny: TinyCore) -> None:
    """M78: the twin of the pointer without reference."""
    table = table_of(tiny)
    table["param.bytes"][:] = 0
    assert both(tiny.core, table) == "M77"
    rows(kernel__refs=[0, 0, 0], ref__at=[], ref__buffer=[], ref__offset=[])(table)
    assert both(tiny.core, table) == ""


def test_a_reference_where_the_function_has_no_pointer_is_refused(tiny: TinyCore) -> None:
    """M78"""
    table = table_of(tiny)
    core = altered(tiny.core, {"functions/0/pointers": []})
    assert both(core, table) == "M78"
    rows(kernel__refs=[0, 0, 0], ref__at=[], ref__buffer=[], ref__offset=[])(table)
    assert both(core, table) == ""


def test_a_reference_may_point_one_past_the_end(tiny: TinyCore) -> None:
    """M76"""
    table = table_of(tiny)
    size = tiny.core.buffers[int(table["ref.buffer"][0])].size
    for offset, verdict in ((size, ""), (size + 1, "M76")):
        altered_table = {name: column.copy() for name, column in table.items()}
        altered_table["ref.offset"][0] = offset
        literal = int.from_bytes(table["param.bytes"][:8].tobytes(), "little") + offset
        altered_table["param.bytes"][:8] = np.frombuffer(literal.to_bytes(8, "little"), dtype=np.uint8)
        assert both(tiny.core, altered_table) == verdict


@pytest.mark.parametrize("role", ["weights", "constants"])
def test_a_memset_or_copy_into_what_is_only_read_is_refused(tiny: TinyCore, role: str) -> None:
    """M82"""
    number = next(number for number, buffer in enumerate(tiny.core.buffers) if buffer.role == role)
    base = next(int(region.base, 16) for region in tiny.core.regions if region.role == role)
    address = base + tiny.core.buffers[number].offset
    for node in ("memset", "copy.to"):
        table = table_of(tiny)
        table["memset.address" if node == "memset" else "copy.to"][0] = address
        table[f"{node}.buffer"][0] = number
        assert both(tiny.core, table) == "M82"
    table = table_of(tiny)
    table["copy.from"][0], table["copy.from.buffer"][0] = address, number
    assert both(tiny.core, table) == ""


def cuda_parts() -> TinyCore:
    """The same core for a CUDA device, with what only such a core may have."""
    parts = tiny_core(weight_bytes=64 << 10)
    changes = {
        "target/device": "cuda", "target/abi": 0, "target/processors": 132, "target/shared_optin": 232448,
        "target/driver": 13000, "functions/0/pointers": [], "functions/0/param_bytes": 24,
    }  # fmt: skip

    def change(graph: GraphTemplate) -> GraphTemplate:
        memset, copy, more, kernel, _ = graph.nodes
        assert isinstance(kernel, KernelNode)
        assert isinstance(memset, MemsetNode)
        kernel = replace(
            kernel,
            grid=(3, 2, 1),
            block=(32, 4, 2),
            shared=49152,
            form=1,
            params=bytes(12) + kernel.params + bytes(4),
            refs=tuple(Ref(12, ref.buffer, ref.offset) for ref in kernel.refs),
            attrs=((2, b"\1"), (8, b"\2\3")),
        )
        memset = replace(memset, element=2, value=0xFFFF, width=2, height=3, pitch=6)
        edges = (*graph.edges[:3], Edge(3, 4, bytes([1, 0, 1, 0, 0, 0, 0, 0])))
        return replace(graph, nodes=(memset, copy, more, kernel, kernel), edges=edges)

    return replace(parts, core=altered(parts.core, changes), graphs=tuple(map(change, parts.graphs)))


def attribute(number: int, value: bytes) -> Lie:
    """The last node attribute of the first kernel becomes this one."""
    return all_of(put("attr.id", 1, number), put("attr.value", 1, np.frombuffer(value.ljust(64, b"\0"), np.uint8)))


def function_attribute(number: int, value: int) -> Lie:
    return rows(function__attrs=[0, 1], function__attr__id=[number], function__attr__value=[value])


def window(base: int, size: int) -> Lie:
    return all_of(
        rows(kernel__attrs=[0, 1, 1, 1, 1], attr__id=[1], attr__value=np.zeros((1, 64))),
        put("attr.value", (0, slice(0, 16)), list(struct.pack("<QQ", base, size))),
    )


IO = region_base(0, "io")
CUDA_ALLOWED: dict[str, Lie] = {
    "the largest attribute id": attribute(14, b"\x64\0\0\0"),
    "a cluster": attribute(4, struct.pack("<III", 2, 1, 1)),
    "a domain map of two bytes": attribute(9, b"\0\1"),
    "a window in a region": window(IO, 4096),
    "no window": window(0, 0),
    "a shared-memory limit": function_attribute(8, 232448),
    "a carve-out left to the driver": function_attribute(9, -1),
    "the largest value": function_attribute(15, (1 << 31) - 1),
    "an ordinary edge behind the launch": put("edge.data", (3, slice(0, 3)), [2, 0, 0]),
    "a programmatic edge behind the launch": put("edge.data", (3, slice(0, 3)), [2, 0, 1]),
    "a programmatic edge": put("edge.data", (3, slice(0, 3)), [1, 0, 1]),
    "words of 32 bits": all_of(put("memset.element", 0, 4), put("memset.width", 0, 1), put("memset.height", 0, 1),
                               put("memset.pitch", 0, 0), put("memset.value", 0, (1 << 32) - 1)),
}  # fmt: skip


CUDA_REFUSED: dict[str, tuple[str, Lie]] = {
    "attributes out of order": ("M79", swap("attr.id", rows=(0, 1))),
    "an attribute twice": ("M79", put("attr.id", 1, 2)),
    "a form that does not exist": ("M75", put("kernel.form", 0, 2)),
    "a type of edge behind the known fields": ("M84", put("edge.data", (3, 3), 1)),
    "rows that overlap": ("M80", put("memset.pitch", 0, 3)),
    "a memset whose last row ends behind its buffer": ("M80", put("memset.pitch", 0, 7)),
    "a memset whose rows wrap": ("M80", put("memset.height", 0, (1 << 63) + 1)),
    "a memset value of three bytes": ("M80", put("memset.value", 0, 1 << 16)),
    "another pointer than its reference": ("M77", put("param.bytes", 12, 1)),
    "a reference beyond the parameters": ("M76", put("ref.at", 0, 20)),
    "an unknown attribute": ("M86", attribute(16, b"\1")),
    "an attribute of launches only": ("M86", attribute(12, b"")),
    "a node that the device updates": ("M86", attribute(13, b"\1")),
    "a cluster with something behind it": ("M86", attribute(4, struct.pack("<IIII", 2, 1, 1, 1))),
    "a domain map of three bytes": ("M86", attribute(9, b"\0\1\1")),
    "a window outside every region": ("M86", window(IO - 4096, 4096)),
    "a window beyond its region": ("M86", window(IO, 1 << 40)),
    "a size without a window": ("M86", window(0, 1)),
    "a function attribute that cannot be set": ("M87", function_attribute(10, 1)),
    "an unknown function attribute": ("M87", function_attribute(16, 1)),
    "a function attribute below 0": ("M87", function_attribute(8, -1)),
    "a carve-out below -1": ("M87", function_attribute(9, -2)),
    "a function attribute beyond 31 bits": ("M87", function_attribute(15, 1 << 31)),
    "a programmatic port without type": ("M84", put("edge.data", (3, slice(0, 3)), [1, 0, 0])),
    "a programmatic type without port": ("M84", put("edge.data", (3, slice(0, 3)), [0, 0, 1])),
    "a port of the target": ("M84", put("edge.data", (3, slice(0, 3)), [1, 1, 1])),
    "an unknown port": ("M84", put("edge.data", (3, slice(0, 3)), [3, 0, 1])),
    "an unknown type of edge": ("M84", put("edge.data", (3, slice(0, 3)), [1, 0, 2])),
    "a programmatic edge from a copy": ("M84", put("edge.data", (2, slice(0, 3)), [1, 0, 1])),
    "a programmatic edge to a copy": ("M84", all_of(
        rows(edge__from=[0, 1, 2, 3, 0, 1, 2, 3]), put("edge.data", (0, slice(0, 3)), [1, 0, 1]))),
    "a port of a copy": ("M84", put("edge.data", (2, slice(0, 3)), [2, 0, 0])),
}  # fmt: skip


@pytest.mark.parametrize("name", CUDA_REFUSED)
def test_columns_of_a_cuda_core_that_lie_are_refused(name: str) -> None:
    """M75, M76, M77, M79, M80, M84, M86, M87 (B5)"""
    parts = cuda_parts()
    table = table_of(parts)
    assert both(parts.core, table) == ""
    rule, lie = CUDA_REFUSED[name]
    lie(table)
    assert both(parts.core, table) == rule


@pytest.mark.parametrize("name", CUDA_ALLOWED)
def test_columns_that_only_a_cuda_core_may_have_are_accepted(name: str) -> None:
    """M75, M79, M80, M84, M86, M87 (B5): the twins, and none of it on the host."""
    parts = cuda_parts()
    table = table_of(parts)
    CUDA_ALLOWED[name](table)
    assert both(parts.core, table) == ""
    host = altered(parts.core, {"target/device": "host", "target/abi": 1})
    assert both(host, table) in {"M74", "M75", "M79", "M80", "M84"}


def test_collectives_and_their_consumers_are_pairs_in_order(tiny: TinyCore) -> None:
    """M85"""
    first = tiny.graphs[0]
    nodes = (*first.nodes[:4], first.nodes[3], first.nodes[3])
    graphs = (replace(first, nodes=nodes, collectives=((3, 4), (3, 5), (4, 5))), tiny.graphs[1])
    parts = replace(tiny, core=altered(tiny.core, {"graphs/0/nodes": 6}), graphs=graphs)
    table = table_of(parts)
    assert both(parts.core, table) == ""
    swap("collective.node", "collective.consumer", rows=(0, 1))(table)
    assert both(parts.core, table) == "M85"
    table = table_of(parts)
    put("collective.consumer", 1, 4)(table)
    assert both(parts.core, table) == "M85"


@settings(max_examples=600, deadline=None)
@given(st.data())
def test_both_readers_agree_on_every_altered_column(draw: st.DataObject) -> None:
    """M70 to M87: a value, a row more or a row less anywhere."""
    parts = cuda_parts() if draw.draw(st.booleans()) else tiny_core(weight_bytes=64 << 10)
    table = table_of(parts)
    for _ in range(draw.draw(st.integers(1, 2))):
        name = draw.draw(st.sampled_from(sorted(COLUMNS)))
        column = table[name]
        how = draw.draw(st.sampled_from(["value", "near", "drop", "grow"]))
        if how == "grow" or len(column) == 0:
            grow(name, draw.draw(st.integers(0, 3)))(table)
        elif how == "drop":
            drop(name)(table)
        else:
            flat = column.reshape(-1)
            at = draw.draw(st.integers(0, len(flat) - 1))
            limits = np.iinfo(column.dtype)
            step = st.integers(limits.min, limits.max) if how == "value" else st.integers(-3, 3)
            old = 0 if how == "value" else int(flat[at])
            flat[at] = np.array((old + draw.draw(step)) % (1 << column.dtype.itemsize * 8), dtype=np.uint64).astype(
                column.dtype
            )
    accepted = product_verdict(parts.core, table) == ""
    assert accepted == (independent_verdict(parts.core, table) == "")
    if accepted:
        decode_catalogue({name: memoryview(column.tobytes()) for name, column in table.items()})


def test_the_native_check_believes_no_column_it_was_not_given(tiny: TinyCore) -> None:
    """M62, M63: it is safe on its own, whoever calls it."""
    good = {name: column.tobytes() for name, column in table_of(tiny).items()}
    facts: tuple[Any, ...] = (True, [(8, [0])], [(0, 8, True)], [(5, 4, 0), (5, 4, 0)], 1)
    for name in COLUMNS:
        without = {key: value for key, value in good.items() if key != name}
        with pytest.raises(FormatError) as error:
            _native.check_columns(without, *facts)
        assert error.value.rule in {"M62", "M76", "M80", "M77"}
        if good[name] and COLUMNS[name][0] != "U8":
            with pytest.raises(FormatError):
                _native.check_columns(good | {name: good[name][:-1]}, *facts)
    with pytest.raises(FormatError) as error:
        _native.check_columns(good, True, [(8, [1])], *facts[2:])
    assert error.value.rule == "M38"


def test_templates_survive_the_round_trip(tiny: TinyCore) -> None:
    """M92"""
    for parts in (tiny, cuda_parts()):
        decoded = decode_catalogue(read_columns(parts.graphs_bytes()))
        again = replace(parts, graphs=decoded)
        assert again.graphs_bytes() == parts.graphs_bytes()
    assert decode_catalogue(read_columns(tiny.graphs_bytes())) == tiny.graphs
