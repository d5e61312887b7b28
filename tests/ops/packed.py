"""Random weights in every layout."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

LAYOUT_NAMES = ("f32", "bf16", "f16", "q8_0", "q4_1")
PACKED = ("q8_0", "q4_1")


def random_weight(layout: str, rows: int, columns: int, source: Generator) -> Tensor:
    """A weight [rows, columns] in a layout; packed ones are made of random blocks, so every quant occurs."""
    if layout == "f32":
        return torch.randn(rows, columns, generator=source)
    if layout in ("bf16", "f16"):
        dtype = torch.bfloat16 if layout == "bf16" else torch.float16
        return torch.randn(rows, columns, generator=source).to(dtype)
    scales = 1 if layout == "q8_0" else 2
    quants = 32 if layout == "q8_0" else 16
    blocks = rows * (columns // 32)
    if blocks == 0:
        return torch.empty(rows, 0, dtype=torch.uint8)
    head = (torch.randn(blocks, scales, generator=source) * 0.05).to(torch.float16).view(torch.uint8)
    body = torch.randint(0, 256, (blocks, quants), generator=source, dtype=torch.uint8)
    return torch.cat((head.reshape(blocks, 2 * scales), body), dim=1).reshape(rows, -1)


def generator(seed: int) -> Generator:
    return torch.Generator().manual_seed(seed)
