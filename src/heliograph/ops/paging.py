"""The paged key/value cache: f16 [blocks, layers, 2, kv heads, block tokens, dim], and tables i32 [S, MB] that name
a sequence's blocks. Token t of the sequence in table row r lies in block tables[r, t // block tokens].

The number of blocks is no parameter of any kernel: a core is loaded with as many as fit.
"""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.ops.arguments import Call
from heliograph.ops.launch import View

FIELDS = (
    ("block_stride", "u64"), ("layer_offset", "u64"), ("block_tokens", "u32"), ("kv_heads", "u32"), ("dim", "u32"),
    ("table_rows", "u32"), ("table_width", "u32"), ("unused", "u32"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Paging:
    """Where tokens lie, as the kernels' ``Paging`` takes it."""

    cache: View
    tables: View
    block_stride: int
    layer_offset: int
    block_tokens: int
    kv_heads: int
    dim: int

    def fields(self) -> dict[str, int]:
        return {
            "block_stride": self.block_stride, "layer_offset": self.layer_offset, "block_tokens": self.block_tokens,
            "kv_heads": self.kv_heads, "dim": self.dim, "table_rows": self.tables.shape[0],
            "table_width": self.tables.shape[1], "unused": 0,
        }  # fmt: skip


def paging(call: Call) -> Paging:
    """From the call's ``cache``, ``layer`` and ``tables``."""
    cache, layer = call.view("cache", "f16", 6), call.integer("layer")
    _, layers, two, kv_heads, block_tokens, dim = cache.shape
    plane = kv_heads * block_tokens * dim
    inside = (2 * plane, plane, block_tokens * dim, dim, 1)
    call.require(
        two == 2 and min(cache.shape[1:]) > 0 and cache.strides[1:] == inside,
        f"cache {list(cache.shape)} strides {list(cache.strides)}",
        "[blocks, layers, 2, kv heads, block tokens, dim], blocks without gaps inside",
    )
    call.require(0 <= layer < layers, f"layer {layer}", f"a layer from 0 to {layers - 1}")
    return Paging(
        cache, call.contiguous("tables", "i32", 2), cache.strides[0], layer * 2 * plane, block_tokens, kv_heads, dim
    )
