"""rope on CUDA: a program turns a head of a token. Products are rounded before they are added, angles before they are
taken apart, as on the host."""

from __future__ import annotations

from functools import partial

import triton
import triton.language as tl
from torch import Tensor

from heliograph.ops.rope import HALF, INTERLEAVED
from heliograph.ops.triton_launch import launches, stated
from heliograph.ops.triton_math import real_rows


@triton.jit(
    do_not_specialize=["has_real", "token_stride", "head_stride", "tokens", "heads"],
    do_not_specialize_on_alignment=["x", "positions", "real", "out"],
)
def rope_f32(
    x, positions, inv_freq, real, has_real, out, token_stride, head_stride, tokens, heads, dim, pairs,
    PAIRS: tl.constexpr, REST: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    if t < real_rows(real, has_real, tokens):
        source = x + t * token_stride + head * head_stride
        target = out + (t * heads + head) * dim
        i = tl.arange(0, PAIRS)
        inside = i < pairs
        angle = tl.load(positions + t).to(tl.float32) * tl.load(inv_freq + i, mask=inside, other=0.0)
        cos, sin = tl.cos(angle), tl.sin(angle)
        first = i * STEP  # STEP 2: pairs of neighbours, 1: with what lies `pairs` further
        second = first + (1 if STEP == 2 else pairs)
        a = tl.load(source + first, mask=inside, other=0.0)
        b = tl.load(source + second, mask=inside, other=0.0)
        tl.store(target + first, a * cos - b * sin, mask=inside)
        tl.store(target + second, b * cos + a * sin, mask=inside)
        rest = 2 * pairs + tl.arange(0, REST)
        tl.store(target + rest, tl.load(source + rest, mask=rest < dim), mask=rest < dim)


def _launch(
    step: int, *, x: Tensor, positions: Tensor, inv_freq: Tensor, real: Tensor | None, out: Tensor,
    token_stride: int, head_stride: int, tokens: int, heads: int, dim: int, rotated: int, **others: object,
) -> None:  # fmt: skip
    pairs = rotated // 2
    rope_f32[(tokens, heads)](
        x, positions, inv_freq, *stated(real, out), out, token_stride, head_stride, tokens, heads, dim, pairs,
        triton.next_power_of_2(max(pairs, 1)), triton.next_power_of_2(max(dim - rotated, 1)), step,
        num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip


launches(HALF)(partial(_launch, 1))
launches(INTERLEAVED)(partial(_launch, 2))
