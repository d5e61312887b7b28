"""Graphs may point into the pools handed in with an owner; memory of anything else is refused and named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch

from heliograph._native import Node, Template
from heliograph.core.format import REGION_PLACES, SLOTS, region_base, region_span
from heliograph.device.pool import Pool
from heliograph.errors import ForeignMemoryError

KERNEL, COPY, FILL = 0, 1, 2  # node kinds, as the driver numbers them


def refuse_ownerless(pools: Iterable[Pool], *, name: str) -> None:
    """ForeignMemoryError for a pool that nothing keeps."""
    for pool in pools:
        if pool.owner is None:
            raise ForeignMemoryError(
                f"binding pools to graph {name!r}",
                found=f"pool {pool.name!r} without an owner",
                required="a pool with the object that keeps its memory",
                hint="hand the pool in with its allocator or reservation as owner",
            )


def refuse_foreign(template: Template, pools: Sequence[Pool], *, name: str) -> None:
    """ForeignMemoryError for the first address in the template that lies in none of the pools.

    On the host a function states where its pointers are. A CUDA function does not: there only copies and fills are
    looked at. The error's ``nodes`` is the node of the captured graph.
    """
    ranges = [piece for pool in pools for piece in pool.ranges]
    for number, node in enumerate(template.nodes()):
        for place, address, size in _addresses(node):
            if not any(start <= address and address + size <= start + length for start, length in ranges):
                error = ForeignMemoryError(
                    f"checking the memory of graph {name!r}",
                    found=f"{place} of node {number} at {address:#x}, in {_owner(template, address)}",
                    required=f"memory of the pools handed in ({', '.join(pool.name for pool in pools) or 'none'})",
                    hint="allocate it from one of these pools, or hand its pool in with an owner",
                )
                error.nodes = (template.top_level[number],)
                raise error


def _addresses(node: Node) -> Iterator[tuple[str, int, int]]:
    """(what it is, address, bytes that must lie there) of each pointer of a node. A null pointer points nowhere."""
    if node.kind == KERNEL and node.function is not None:
        for offset in node.function.pointer_offsets:
            address = int.from_bytes(node.params[offset : offset + 8], "little")
            if address:
                yield f"parameter of {node.function.name} at byte {offset}", address, 1
    elif node.kind == FILL:
        yield "the memory filled", node.address, node.size
    elif node.kind == COPY:
        yield "the destination of a copy", node.address, node.size
        yield "the source of a copy", node.source, node.size


def _owner(template: Template, address: int) -> str:
    """Whose memory an address is: PyTorch's on a GPU that it uses, else as far as this process can tell."""
    if template.device.kind == "cuda" and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        from heliograph.capture.cuda.session import torch_allocation  # noqa: PLC0415 - a host pays for nothing of it

        return torch_allocation(address) or whose(address)
    return whose(address)


def whose(address: int) -> str:
    """The name of the allocator or mapping that an address belongs to, as far as this process can tell."""
    for slot in range(SLOTS):
        for role in REGION_PLACES:
            base = region_base(slot, role)
            if base <= address < base + region_span(role):
                return f"the {role} region of slot {slot}"
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *_, path = line.split(None, 5) + [""] * (6 - len(line.split(None, 5)))
        start, end = (int(part, 16) for part in span.split("-"))
        if start <= address < end:
            return _mapping(path)
    return "no memory of this process"


def _mapping(path: str) -> str:
    if path == "[heap]" or not path:
        return "memory of the C allocator or of another library, as a plain tensor's"
    return f"the mapping {Path(path).name}" if path.startswith("/") else f"the mapping {path}"
