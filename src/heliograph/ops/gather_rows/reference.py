"""``heliograph::gather_rows`` in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.library.custom_op("heliograph::gather_rows", mutates_args=())
def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    known = (index >= 0) & (index < x.shape[0])
    if x.shape[0] == 0:
        return x.new_zeros((index.shape[0], x.shape[1]))
    return torch.where(known[:, None], x[torch.where(known, index, 0).long()], 0.0)


@gather_rows.register_fake
def _(x: Tensor, index: Tensor) -> Tensor:
    return x.new_empty((index.shape[0], x.shape[1]))
