"""paged_attention on CUDA: a program is a head of a row, which runs over its positions in tiles of TILE, in order."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from heliograph.ops.paged_attention import BY_GROUP
from heliograph.ops.triton_launch import launches, stated
from heliograph.ops.triton_math import exp, real_rows

TILE = 32


@triton.jit(
    do_not_specialize=[
        "has_real", "q_token_stride", "q_head_stride", "kv_heads", "table_rows", "table_width", "tokens", "heads",
        "group",
    ],
    do_not_specialize_on_alignment=["q", "tables", "rows", "positions", "real", "out"],
)  # fmt: skip
def paged_attention_f16(
    q, cache, tables, rows, positions, real, has_real, out, q_token_stride, q_head_stride, block_stride, layer_offset,
    block_tokens, kv_heads, dim, table_rows, table_width, tokens, heads, group, scale, DIM: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    if t < real_rows(real, has_real, tokens):
        i = tl.arange(0, DIM)
        query = tl.load(q + t * q_token_stride + head * q_head_stride + i, mask=i < dim, other=0.0)
        row = tl.load(rows + t)
        position = tl.load(positions + t)
        known = (position >= 0) & (position // block_tokens < table_width) & (row >= 0) & (row < table_rows)
        length = tl.where(known, position + 1, 0)
        table = tables + row.to(tl.int64) * table_width
        values_from = kv_heads.to(tl.int64) * block_tokens * dim
        largest = tl.full([1], float("-inf"), tl.float32)
        total = tl.zeros([1], tl.float32)
        mixed = tl.zeros([DIM], tl.float32)
        for start in range(0, length, TILE):
            token = start + tl.arange(0, TILE)
            block = tl.load(table + token // block_tokens, mask=token < length, other=0)
            block = tl.maximum(block, 0).to(tl.int64)
            place = block * block_stride + layer_offset
            place += (head // group * block_tokens + token % block_tokens) * dim
            keys = cache + place[:, None] + i[None, :]
            inside = (token < length)[:, None] & (i < dim)[None, :]
            key = tl.load(keys, mask=inside, other=0.0).to(tl.float32)
            scores = tl.sum(query[None, :] * key, 1) * scale
            scores = tl.where(token < length, scores, float("-inf"))
            now = tl.maximum(largest, tl.max(scores, 0))
            keep = exp(largest - now)
            weights = exp(scores - now)
            value = tl.load(keys + values_from, mask=inside, other=0.0).to(tl.float32)
            total = total * keep + tl.sum(weights, 0)
            mixed = mixed * keep + tl.sum(weights[:, None] * value, 0)
            largest = now
        result = tl.where(length > 0, tl.div_rn(mixed, tl.where(length > 0, total, 1.0)), 0.0)
        tl.store(out + (t * heads + head) * dim + i, result, mask=i < dim)


@launches(*BY_GROUP.values())
def launch(
    *, q: Tensor, cache: Tensor, tables: Tensor, rows: Tensor, positions: Tensor, real: Tensor | None, out: Tensor,
    q_token_stride: int, q_head_stride: int, block_stride: int, layer_offset: int, block_tokens: int, kv_heads: int,
    dim: int, table_rows: int, table_width: int, tokens: int, heads: int, scale: float, **others: object,
) -> None:  # fmt: skip
    paged_attention_f16[(tokens, heads)](
        q, cache, tables, rows, positions, *stated(real, out), out, q_token_stride, q_head_stride, block_stride,
        layer_offset, block_tokens, kv_heads, dim, table_rows, table_width, tokens, heads, heads // kv_heads, scale,
        triton.next_power_of_2(dim), TILE,
    )  # fmt: skip
