"""``heliograph::linear`` in plain PyTorch, and the values of packed weights."""

from __future__ import annotations

import torch
from torch import Tensor

from heliograph.ops.layouts import LAYOUTS

_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def dequantise(weight: Tensor, layout: str) -> Tensor:
    """The f32 values [rows, columns] of a weight in a layout of ``ops.layouts``."""
    if layout in _DTYPES:
        if weight.dtype is not _DTYPES[layout]:
            raise TypeError(f"layout {layout} takes {_DTYPES[layout]}, got {weight.dtype}")
        return weight.to(torch.float32)
    size = LAYOUTS[layout].block_bytes
    blocks = weight.reshape(weight.shape[0], weight.shape[1] // size, size)
    scale = blocks[..., :2].contiguous().view(torch.float16).to(torch.float32)
    if layout == "q8_0":
        values = blocks[..., 2:].view(torch.int8).to(torch.float32) * scale
    else:
        least = blocks[..., 2:4].contiguous().view(torch.float16).to(torch.float32)
        quants = torch.cat((blocks[..., 4:] & 15, blocks[..., 4:] >> 4), dim=-1)
        values = quants.to(torch.float32) * scale + least
    return values.flatten(1)


@torch.library.custom_op("heliograph::linear", mutates_args=())
def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, layout: str, out_features: int, real: Tensor | None = None
) -> Tensor:
    if weight.shape[0] != out_features:
        raise ValueError(f"out_features {out_features} for a weight of {weight.shape[0]} rows")
    y = x @ dequantise(weight, layout).T
    return y if bias is None else y + bias


@linear.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor | None, layout: str, out_features: int, real: Tensor | None = None
) -> Tensor:
    return x.new_empty((x.shape[0], out_features))
