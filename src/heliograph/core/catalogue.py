"""graphs.safetensors against core.json (M70 to M87): facts are collected here, the columns are checked natively.

What only a CUDA device has is checked here: few values, most of them equal.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Final

from heliograph import _native
from heliograph.core.format import (
    CUDA_ACCESS_WINDOW,
    CUDA_CARVE_OUT,
    CUDA_EDGES,
    CUDA_FUNCTION_ATTRIBUTES,
    CUDA_NODE_ATTRIBUTES,
    READ_ONLY_ROLES,
)
from heliograph.core.layout import addresses, chunk_count
from heliograph.core.manifest import Core
from heliograph.core.refusal import refusal

_DOING: Final = "checking graphs.safetensors"
_ATTRIBUTE: Final = 64  # bytes of a stored value


def check_catalogue(core: Core, columns: Mapping[str, memoryview]) -> None:
    """FormatError naming the first rule that the columns break. ``core`` has passed ``rules.meaning``."""
    _native.check_columns(
        dict(columns),
        core.target.device == "host",
        [(function.param_bytes, function.pointers) for function in core.functions],
        [
            (address, buffer.size, buffer.role not in READ_ONLY_ROLES)
            for address, buffer in zip(addresses(core.regions, core.buffers), core.buffers, strict=True)
        ],
        [(graph.nodes, graph.edges, graph.flags) for graph in core.graphs],
        chunk_count(core.weights.size),
    )
    if core.target.device == "cuda":
        check_edge_data(columns)
        check_node_attributes(core, columns)
        check_function_attributes(columns)


def check_edge_data(columns: Mapping[str, memoryview]) -> None:
    """M84: ports and types that a driver knows, and programmatic ones between kernels only."""
    kinds, first = columns["node.kind"].cast("B"), columns["graph.nodes"].cast("I")
    sources, targets = columns["edge.from"].cast("I"), columns["edge.to"].cast("I")
    graphs = columns["graph.edges"].cast("I")
    for edge, data in enumerate(columns["edge.data"].cast("B").cast("Q")):
        if data == 0:
            continue
        node = first[bisect_right(graphs, edge) - 1]  # the first of its graph
        port, target_port, kind = (data >> 8 * byte & 0xFF for byte in range(3))
        kernels = kinds[node + sources[edge]] == 0, kinds[node + targets[edge]] == 0
        if target_port or (port, kind) not in CUDA_EDGES or not kernels[0] or (kind and not kernels[1]):
            raise refusal(
                _DOING,
                f"edge {edge} with ports {port} and {target_port}, type {kind}",
                f"port and type of {list(CUDA_EDGES)}, from a kernel; of type 1 also to a kernel",
                "M84",
            )


def check_node_attributes(core: Core, columns: Mapping[str, memoryview]) -> None:
    """M86: known attributes of kernel nodes, their members only; an access window lies in a region."""
    values = columns["attr.value"].cast("B").tobytes()
    rows = enumerate(columns["attr.id"].cast("I"))
    for number, value in {(number, values[_ATTRIBUTE * row : _ATTRIBUTE * (row + 1)]) for row, number in rows}:
        used = CUDA_NODE_ATTRIBUTES.get(number)
        if used is None:
            raise refusal(_DOING, f"node attribute {number}", f"one of {list(CUDA_NODE_ATTRIBUTES)}", "M86")
        if any(value[used:]):
            raise refusal(_DOING, f"node attribute {number} of more than {used} bytes", "zeros behind them", "M86")
        if number == CUDA_ACCESS_WINDOW and not _is_window(core, value):
            raise refusal(_DOING, f"an access window {value[:16].hex()}", "one inside a region, or none", "M86")


def _is_window(core: Core, value: bytes) -> bool:
    base, size = int.from_bytes(value[:8], "little"), int.from_bytes(value[8:16], "little")
    starts = ((int(region.base, 16), region.span) for region in core.regions)
    return (base, size) == (0, 0) or any(begin <= base and base + size <= begin + span for begin, span in starts)


def check_function_attributes(columns: Mapping[str, memoryview]) -> None:
    """M87: attributes of functions that can be set, with values that one can have."""
    ids, values = columns["function.attr.id"].cast("I"), columns["function.attr.value"].cast("q")
    for number, value in zip(ids, values, strict=True):
        least = -1 if number == CUDA_CARVE_OUT else 0
        if number not in CUDA_FUNCTION_ATTRIBUTES or not least <= value < 1 << 31:
            raise refusal(
                _DOING,
                f"function attribute {number} of {value}",
                f"one of {list(CUDA_FUNCTION_ATTRIBUTES)}, 0 to 2^31 - 1 (the carve-out from -1 on)",
                "M87",
            )
