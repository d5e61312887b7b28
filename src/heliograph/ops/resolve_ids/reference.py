"""``heliograph::resolve_ids`` in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.library.custom_op("heliograph::resolve_ids", mutates_args=())
def resolve_ids(ids: Tensor, slots: Tensor, last_token: Tensor) -> Tensor:
    from_slot = (ids == -1) & (slots >= 0) & (slots < last_token.shape[0])
    return torch.where(from_slot, last_token[torch.where(from_slot, slots, 0).long()], ids)


@resolve_ids.register_fake
def _(ids: Tensor, slots: Tensor, last_token: Tensor) -> Tensor:
    return ids.new_empty(ids.shape)
