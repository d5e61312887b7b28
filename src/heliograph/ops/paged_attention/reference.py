"""``heliograph::paged_attention`` in plain PyTorch: one softmax a row over its gathered keys."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.library.custom_op("heliograph::paged_attention", mutates_args=())
def paged_attention(
    q: Tensor, cache: Tensor, layer: int, tables: Tensor, rows: Tensor, positions: Tensor, scale: float,
    real: Tensor | None = None,
) -> Tensor:  # fmt: skip
    heads, dim = q.shape[1:]
    _, _, _, kv_heads, block_tokens, _ = cache.shape
    out = torch.zeros_like(q)
    for t, (row, position) in enumerate(zip(rows.tolist(), positions.tolist(), strict=True)):
        if not (0 <= row < tables.shape[0] and 0 <= position < tables.shape[1] * block_tokens):
            continue
        used = tables[row, : position // block_tokens + 1].clamp(min=0).long()
        kv = cache[used, layer].to(torch.float32)  # [blocks, 2, kv heads, block tokens, dim]
        keys, values = kv.permute(1, 2, 0, 3, 4).reshape(2, kv_heads, -1, dim)[:, :, : position + 1]
        grouped = q[t].reshape(kv_heads, heads // kv_heads, dim)
        weights = torch.softmax(grouped @ keys.transpose(1, 2) * scale, dim=-1)
        out[t] = (weights @ values).reshape(heads, dim)
    return out


@paged_attention.register_fake
def _(
    q: Tensor, cache: Tensor, layer: int, tables: Tensor, rows: Tensor, positions: Tensor, scale: float,
    real: Tensor | None = None,
) -> Tensor:  # fmt: skip
    return q.new_empty(q.shape)
