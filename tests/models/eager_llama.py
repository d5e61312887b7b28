"""Runs a model outside any capture, through the reference implementations of the ops."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from heliograph.models.llama import Llama, Places

BLOCK = 16


def i32(values: Sequence[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int32)


@torch.no_grad()
def teacher_forced(model: Llama, ids: Sequence[int], chunks: Sequence[int], seed: int = 0) -> Tensor:
    """f32[T, V]: logits after each of ``ids``, taken in chunks of the given sizes, over scattered blocks."""
    config = model.config
    count = -(-len(ids) // BLOCK)
    blocks = random.Random(seed).sample(range(1, 2 * count + 2), count)
    kv = torch.zeros(2 * count + 2, config.layers, 2, config.kv_heads, BLOCK, config.head_width, dtype=torch.float16)
    table, logits, at = i32(blocks)[None], [], 0
    for size in chunks:
        places = Places(i32(range(at, at + size)), torch.zeros(size, dtype=torch.int32), table)
        logits.append(model.logits(model(i32(ids[at : at + size]), places, kv)))
        at += size
    if at != len(ids):
        raise ValueError(f"chunks {chunks} for {len(ids)} ids")
    return torch.cat(logits)
