"""graphs.safetensors against core.json (M70 to M85): facts are collected here, the columns are checked natively."""

from __future__ import annotations

from collections.abc import Mapping

from heliograph import _native
from heliograph.core.format import READ_ONLY_ROLES
from heliograph.core.layout import addresses, chunk_count
from heliograph.core.manifest import Core


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
