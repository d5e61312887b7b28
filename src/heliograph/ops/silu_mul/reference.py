"""``heliograph::silu_mul`` in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.library.custom_op("heliograph::silu_mul", mutates_args=())
def silu_mul(gate: Tensor, up: Tensor, real: Tensor | None = None) -> Tensor:
    return torch.nn.functional.silu(gate) * up


@silu_mul.register_fake
def _(gate: Tensor, up: Tensor, real: Tensor | None = None) -> Tensor:
    return gate.new_empty(gate.shape)
