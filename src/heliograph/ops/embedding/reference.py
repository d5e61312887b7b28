"""``heliograph::embedding`` in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from heliograph.ops.linear.reference import dequantise


@torch.library.custom_op("heliograph::embedding", mutates_args=())
def embedding(ids: Tensor, weight: Tensor, layout: str, dim: int, real: Tensor | None = None) -> Tensor:
    known = (ids >= 0) & (ids < weight.shape[0])
    rows = dequantise(weight[torch.where(known, ids, 0).long()], layout)
    return torch.where(known[:, None], rows, 0.0)


@embedding.register_fake
def _(ids: Tensor, weight: Tensor, layout: str, dim: int, real: Tensor | None = None) -> Tensor:
    return ids.new_empty((ids.shape[0], dim), dtype=torch.float32)
