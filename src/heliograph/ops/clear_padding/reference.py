"""``heliograph::clear_padding`` in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.library.custom_op("heliograph::clear_padding", mutates_args=("x",))
def clear_padding(x: Tensor, real: Tensor) -> None:
    x[max(int(real), 0) :] = 0.0


@clear_padding.register_fake
def _(x: Tensor, real: Tensor) -> None:
    return None
