"""``heliograph::rope`` in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.library.custom_op("heliograph::rope", mutates_args=())
def rope(x: Tensor, positions: Tensor, inv_freq: Tensor, interleaved: bool, real: Tensor | None = None) -> Tensor:
    angles = positions.to(torch.float32)[:, None] * inv_freq[None, :]
    cos, sin = angles.cos()[:, None, :], angles.sin()[:, None, :]
    pairs = inv_freq.shape[0]
    turned, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    else:
        a, b = turned[..., :pairs], turned[..., pairs:]
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    return torch.cat((turned, rest), dim=-1)


@rope.register_fake
def _(x: Tensor, positions: Tensor, inv_freq: Tensor, interleaved: bool, real: Tensor | None = None) -> Tensor:
    return x.new_empty(x.shape)
