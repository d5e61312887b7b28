"""``heliograph::kv_store`` in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.library.custom_op("heliograph::kv_store", mutates_args=("cache",))
def kv_store(k: Tensor, v: Tensor, cache: Tensor, layer: int, tables: Tensor, rows: Tensor, positions: Tensor) -> None:
    block_tokens = cache.shape[4]
    columns = torch.where(positions >= 0, positions, 0) // block_tokens
    real = (positions >= 0) & (columns < tables.shape[1]) & (rows >= 0) & (rows < tables.shape[0])
    t = real.nonzero().flatten()
    indices = tables[rows[t].long(), columns[t].long()].long()
    t, indices = t[indices >= 0], indices[indices >= 0]
    places = positions[t].long() % block_tokens
    cache[indices, layer, 0, :, places] = k[t].to(torch.float16)
    cache[indices, layer, 1, :, places] = v[t].to(torch.float16)


@kv_store.register_fake
def _(k: Tensor, v: Tensor, cache: Tensor, layer: int, tables: Tensor, rows: Tensor, positions: Tensor) -> None:
    return None
