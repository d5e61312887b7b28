"""What the driver has of a graph, as data to compare between processes. No torch."""

from __future__ import annotations

from typing import Any

from heliograph._native import Template


def described(template: Template) -> dict[str, Any]:
    """Nodes in order with every field but the bytes of kernel parameters, and edges with their data."""
    nodes = [
        {
            "kind": node.kind,
            "function": node.function.name if node.function is not None else "",
            "grid": list(node.grid),
            "block": list(node.block),
            "shared": node.shared_bytes,
            "form": node.form,
            "params": len(node.params),
            "attrs": [[number, value.hex()] for number, value in node.attrs],
            "address": node.address,
            "source": node.source,
            "memset": [node.value, node.element, node.width, node.height, node.pitch],
            "size": node.size,
        }
        for node in template.nodes()
    ]
    return {"nodes": nodes, "edges": [[source, target, data.hex()] for source, target, data in template.edges()]}
