"""Packed weights become plain ones, for devices whose kernels take no packed layout."""

from __future__ import annotations

import torch
from torch import nn

from heliograph.models.llama import Embedding, Linear, Llama, layout
from heliograph.ops.layouts import LAYOUTS
from heliograph.ops.linear.reference import dequantise


@torch.no_grad()
def dequantised(model: Llama, dtype: torch.dtype = torch.bfloat16) -> Llama:
    """The model itself, with every packed matrix (q8_0, q4_1) replaced by its values [rows, columns] in ``dtype``
    (bf16, f16 or f32). Plain ones keep their type. A matrix still carries the digest of the bytes that it came from.

    One matrix at a time: what is held besides is the f32 form of the largest.
    """
    for module in model.modules():
        if isinstance(module, Linear | Embedding) and LAYOUTS[module.layout].block > 1:
            module.weight = _plain(module.weight, module.layout, dtype)
            module.layout = layout(module.weight)
    return model


def _plain(packed: nn.Parameter, name: str, dtype: torch.dtype) -> nn.Parameter:
    plain = nn.Parameter(dequantise(packed, name).to(dtype), requires_grad=False)
    source: str | None = getattr(packed, "heliograph_source", None)
    if source is not None:
        plain.heliograph_source = source  # type: ignore[attr-defined]
    return plain
