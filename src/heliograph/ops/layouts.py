"""How the rows of a weight are stored.

A plain layout is a tensor [rows, columns] of f32, bf16 or f16. A packed one is a tensor u8 [rows, row bytes] of GGUF
blocks of 32 weights along a row:

``q8_0``   34 bytes: f16 d, then int8 q[32]; weight i is d q[i]
``q4_1``   20 bytes: f16 d, f16 m, then 16 bytes whose low nibbles are q[0..15] and high nibbles q[16..31];
           weight i is d q[i] + m, rounded once to f32
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from heliograph.ops.arguments import Call
from heliograph.ops.launch import ITEM_BYTES, View


@dataclass(frozen=True, slots=True)
class Layout:
    """``block`` weights of a row take ``block_bytes`` bytes; ``dtype`` is that of the tensor that holds them."""

    dtype: str
    block: int
    block_bytes: int

    def row_bytes(self, columns: int) -> int:
        return columns // self.block * self.block_bytes


LAYOUTS: Mapping[str, Layout] = {
    "f32": Layout("f32", 1, 4),
    "bf16": Layout("bf16", 1, 2),
    "f16": Layout("f16", 1, 2),
    "q8_0": Layout("u8", 32, 34),
    "q4_1": Layout("u8", 32, 20),
}


def weight_view(call: Call, columns: int) -> tuple[str, View, int]:
    """The call's layout, its weight of ``columns`` logical columns, and the bytes from a row to the next."""
    name = call.text("layout")
    call.require(name in LAYOUTS, f"layout {name!r}", f"a layout of {', '.join(LAYOUTS)}")
    layout = LAYOUTS[name]
    weight = call.view("weight", layout.dtype, 2)
    stored = layout.row_bytes(columns) // ITEM_BYTES[layout.dtype]
    call.require(
        columns % layout.block == 0 and weight.shape[1] == stored,
        f"rows of {weight.shape[1]} {weight.dtype}",
        f"{stored} a row for {columns} columns of layout {name}, in whole blocks of {layout.block}",
    )
    return name, weight, call.rows("weight", weight).stride * ITEM_BYTES[layout.dtype]
