"""A captured graph becomes nodes of a core: functions by image, pointers by the census, lines by the ops that ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from heliograph._native import Node as DriverNode
from heliograph.capture.buffers import BufferTable
from heliograph.capture.classify import FROM, TO, NodeCensus
from heliograph.capture.cuda.kernels import CudaKernels
from heliograph.capture.cuda.ops import NO_OP, OpSpan, origin_of, span_of, with_lines
from heliograph.capture.cuda.pools import FrameworkPool
from heliograph.capture.places import PlacedGraph
from heliograph.capture.words import RecordedKernel, RecordedNode
from heliograph.core.templates import (
    KIND_COPY,
    KIND_EMPTY,
    KIND_KERNEL,
    KIND_MEMSET,
    CopyNode,
    EmptyNode,
    KernelNode,
    MemsetNode,
    Node,
)
from heliograph.device.graph import Graph
from heliograph.errors import CaptureError


@dataclass(frozen=True, slots=True)
class CudaGraph:
    """What was captured of a bucket, and the ops that ran meanwhile."""

    placed: PlacedGraph
    graph: Graph
    spans: tuple[OpSpan, ...]
    nodes: tuple[DriverNode, ...]
    top_level: tuple[int, ...]  # for each node the node of the captured graph that it is, or is in

    def span(self, node: int) -> OpSpan | None:
        """The op that a node belongs to."""
        return span_of(self.spans, self.top_level[node])

    def origin(self, node: int) -> str:
        return origin_of(self.spans, self.top_level[node])


def attributed(graphs: Sequence[Sequence[Node]]) -> str:
    """How many nodes have the op and line that launched them, for printing."""
    known = [node.origin != NO_OP for graph in graphs for node in graph]
    return f"lines: {sum(known)} of {len(known)} nodes have theirs"


def name_scratch(captured: CudaGraph, buffers: BufferTable, pool: FrameworkPool) -> None:
    """A buffer in ``scratch`` for every tensor that an op made there, under the op's stable name."""
    for span in captured.spans:
        for number, made in enumerate(span.made):
            offset = made.address - pool.base
            if made.size and offset >= 0 and offset + made.size <= pool.size:
                name = f"scratch/{span.path}/out{number}/{captured.placed.name}"
                buffers.put(name, "scratch", offset, made.size, made.dtype, made.shape)


def recorded_nodes(captured: CudaGraph, kernels: CudaKernels) -> tuple[RecordedNode, ...]:
    """The nodes as the census compares them: functions by what they are, parameters as bytes."""
    return tuple(_recorded(captured, number, kernels) for number in range(len(captured.nodes)))


def _recorded(captured: CudaGraph, number: int, kernels: CudaKernels) -> RecordedNode:
    node, span = captured.nodes[number], captured.span(number)
    origin, path = captured.origin(number), span.path if span is not None else ""
    if node.kind == KIND_KERNEL and node.function is not None:
        try:
            image, name = kernels.name(kernels.number(node.function, node.shared_bytes))
        except CaptureError as error:  # no image of it is known
            top = captured.top_level[number]
            found = f"node {top}: {error.found}"
            raise with_lines(error, found, (top,), captured.graph.name, captured.spans) from error
        kernel = RecordedKernel(
            function=name,
            image=image,
            params=node.params,
            layout=tuple(node.function.params),
            grid=node.grid,
            block=node.block,
            shared=node.shared_bytes,
        )
        return RecordedNode(kind=KIND_KERNEL, origin=origin, kernel=kernel, path=path)
    if node.kind == KIND_MEMSET:
        form = (node.value, node.element, node.width, node.height, node.pitch)
        size = (node.height - 1) * node.pitch + node.element * node.width
        return RecordedNode(kind=KIND_MEMSET, origin=origin, address=node.address, size=size, form=form, path=path)
    if node.kind == KIND_COPY:
        return RecordedNode(
            kind=KIND_COPY, origin=origin, address=node.address, source=node.source, size=node.size, path=path
        )
    return RecordedNode(kind=KIND_EMPTY, origin=origin, path=path)


def literal_nodes(nodes: tuple[Node, ...], captured: CudaGraph) -> tuple[Node, ...] | None:
    """The nodes with left-over bytes as they were captured; None where there are none."""
    if all(
        not isinstance(node, KernelNode) or node.params == was.params
        for node, was in zip(nodes, captured.nodes, strict=True)
    ):
        return None
    return tuple(
        replace(node, params=was.params) if isinstance(node, KernelNode) else node
        for node, was in zip(nodes, captured.nodes, strict=True)
    )


def stored_nodes(captured: CudaGraph, census: tuple[NodeCensus, ...], kernels: CudaKernels) -> tuple[Node, ...]:
    """The nodes as a core stores them: left-over bytes are zero, pointers are also references."""
    return tuple(
        _stored(node, captured.origin(number), census[number], kernels) for number, node in enumerate(captured.nodes)
    )


def _stored(node: DriverNode, origin: str, census: NodeCensus, kernels: CudaKernels) -> Node:
    if node.kind == KIND_KERNEL and node.function is not None:
        params = bytearray(node.params)
        for at, size in census.zeroed:
            params[at : at + size] = bytes(size)
        return KernelNode(
            origin=origin,
            function=kernels.number(node.function, node.shared_bytes),
            grid=node.grid,
            block=node.block,
            shared=node.shared_bytes,
            form=node.form,
            params=bytes(params),
            refs=tuple(sorted(census.refs, key=lambda ref: ref.at)),
            attrs=tuple(node.attrs),
        )
    refs = {ref.at: ref for ref in census.refs}
    if node.kind == KIND_MEMSET:
        to = refs[TO]
        return MemsetNode(
            origin=origin,
            address=node.address,
            buffer=to.buffer,
            offset=to.offset,
            width=node.width,
            value=node.value,
            element=node.element,
            height=node.height,
            pitch=node.pitch,
        )
    if node.kind == KIND_COPY:
        to, source = refs[TO], refs[FROM]
        return CopyNode(
            origin=origin,
            to=node.address,
            to_buffer=to.buffer,
            to_offset=to.offset,
            source=node.source,
            source_buffer=source.buffer,
            source_offset=source.offset,
            size=node.size,
        )
    return EmptyNode(origin=origin)
