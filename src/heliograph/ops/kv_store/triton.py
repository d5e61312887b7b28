"""kv_store on CUDA: a program stores a key and a value head of a token."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from heliograph.ops.kv_store import KV_STORE
from heliograph.ops.triton_launch import launches


@triton.jit(
    do_not_specialize=[
        "k_token_stride", "k_head_stride", "v_token_stride", "v_head_stride", "kv_heads", "table_rows",
        "table_width",
    ],
    do_not_specialize_on_alignment=["k", "v", "tables", "rows", "positions"],
)  # fmt: skip
def kv_store_f16(
    k, v, cache, tables, rows, positions, k_token_stride, k_head_stride, v_token_stride, v_head_stride, block_stride,
    layer_offset, block_tokens, kv_heads, dim, table_rows, table_width, DIM: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    row = tl.load(rows + t)
    position = tl.load(positions + t)
    column = position // block_tokens
    known = (position >= 0) & (column < table_width) & (row >= 0) & (row < table_rows)
    block = tl.load(tables + row.to(tl.int64) * table_width + column, mask=known, other=-1).to(tl.int64)
    i = tl.arange(0, DIM)
    inside = (i < dim) & (block >= 0)
    place = block * block_stride + layer_offset + (head * block_tokens + position % block_tokens) * dim + i
    key = tl.load(k + t * k_token_stride + head * k_head_stride + i, mask=inside, other=0.0)
    value = tl.load(v + t * v_token_stride + head * v_head_stride + i, mask=inside, other=0.0)
    tl.store(cache + place, key.to(tl.float16), mask=inside)
    tl.store(cache + place + kv_heads.to(tl.int64) * block_tokens * dim, value.to(tl.float16), mask=inside)


@launches(KV_STORE)
def launch(
    *, k: Tensor, v: Tensor, cache: Tensor, tables: Tensor, rows: Tensor, positions: Tensor, k_token_stride: int,
    k_head_stride: int, v_token_stride: int, v_head_stride: int, block_stride: int, layer_offset: int,
    block_tokens: int, kv_heads: int, dim: int, table_rows: int, table_width: int, blocks: int, **others: object,
) -> None:  # fmt: skip
    kv_store_f16[(blocks, kv_heads)](
        k, v, cache, tables, rows, positions, k_token_stride, k_head_stride, v_token_stride, v_head_stride,
        block_stride, layer_offset, block_tokens, kv_heads, dim, table_rows, table_width,
        triton.next_power_of_2(dim), num_warps=1,
    )  # fmt: skip
