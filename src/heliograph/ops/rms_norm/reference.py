"""``heliograph::rms_norm`` in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.library.custom_op("heliograph::rms_norm", mutates_args=())
def rms_norm(x: Tensor, weight: Tensor, eps: float, real: Tensor | None = None) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


@rms_norm.register_fake
def _(x: Tensor, weight: Tensor, eps: float, real: Tensor | None = None) -> Tensor:
    return x.new_empty(x.shape)
