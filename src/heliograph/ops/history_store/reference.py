"""``heliograph::history_store`` in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.library.custom_op("heliograph::history_store", mutates_args=("history",))
def history_store(ids: Tensor, slots: Tensor, positions: Tensor, history: Tensor) -> None:
    real = (slots >= 0) & (slots < history.shape[0]) & (positions >= 0) & (positions < history.shape[1])
    history[slots[real].long(), positions[real].long()] = ids[real]


@history_store.register_fake
def _(ids: Tensor, slots: Tensor, positions: Tensor, history: Tensor) -> None:
    return None
