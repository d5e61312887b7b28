"""Graphs as data: nodes, edges, references, and the columns of graphs.safetensors they are stored in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ref:
    """A pointer in a node's parameters: ``buffer`` is an index into core.json's buffers."""

    at: int       # byte offset in the parameters
    buffer: int
    offset: int   # byte offset in the buffer; its size (one past the end) is allowed


@dataclass(frozen=True, slots=True)
class KernelNode:
    origin: str                      # what recorded it: model path, op, line
    function: int                    # index into core.json's functions
    grid: tuple[int, int, int]
    block: tuple[int, int, int] = (1, 1, 1)
    shared: int = 0
    form: int = 0                    # 0 array of pointers, 1 one buffer
    params: bytes = b""              # literal bytes, pointers included
    refs: tuple[Ref, ...] = ()
    attrs: tuple[tuple[int, bytes], ...] = ()   # (id, value of up to 64 bytes)


@dataclass(frozen=True, slots=True)
class MemsetNode:
    origin: str
    address: int
    buffer: int
    offset: int
    width: int                       # elements
    value: int = 0
    element: int = 1                 # bytes of an element: 1, 2, 4
    height: int = 1
    pitch: int = 0                   # bytes from row to row; 0 when height is 1


@dataclass(frozen=True, slots=True)
class CopyNode:
    origin: str
    to: int                          # address
    to_buffer: int
    to_offset: int
    source: int                      # address
    source_buffer: int
    source_offset: int
    size: int


@dataclass(frozen=True, slots=True)
class EmptyNode:
    origin: str


Node = KernelNode | MemsetNode | CopyNode | EmptyNode


@dataclass(frozen=True, slots=True)
class Edge:
    source: int                      # node number in its graph; source < target
    target: int
    data: bytes = bytes(8)


@dataclass(frozen=True, slots=True)
class GraphTemplate:
    """Nodes in capture order; edges in any order (they are stored by target, then source)."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    flags: int = 0
    collectives: tuple[tuple[int, int], ...] = ()   # (node of the collective, node that consumes its result)


def encode_catalogue(
    graphs: Sequence[GraphTemplate],
    function_attrs: Sequence[Sequence[tuple[int, int]]],
    chunk_digests: Sequence[bytes],
) -> bytes:
    """graphs.safetensors. ``function_attrs``: for each function of core.json its (id, value) pairs;
    ``chunk_digests``: BLAKE3 of each 4 MiB chunk of the weights image, as ``DraftWriter.put_weights`` gives them."""
    raise NotImplementedError


def decode_catalogue(columns: Mapping[str, memoryview]) -> tuple[GraphTemplate, ...]:
    """The graphs of checked columns (``columns.read_columns``, ``VerifiedCore.columns``), for tools."""
    raise NotImplementedError
