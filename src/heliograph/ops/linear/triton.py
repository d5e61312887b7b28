"""linear on CUDA, of plain layouts: a program computes OUTPUTS outputs of ROWS rows, which share the weights that it
reads and nothing else. Lane k mod DEPTH of a dot product is one chain of fused multiply-adds in ascending k, then the
lanes are folded in a fixed tree and the bias is added."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from heliograph.ops.linear import BY_LAYOUT
from heliograph.ops.triton_launch import launches, stated
from heliograph.ops.triton_math import real_rows

ROWS, OUTPUTS, DEPTH = 4, 8, 128


@triton.jit(do_not_specialize=["has_real", "x_stride", "rows"], do_not_specialize_on_alignment=["x", "real", "out"])
def linear_plain(
    x, weight, bias, real, has_real, out, x_stride, weight_stride, rows, depth, outputs, HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64) * OUTPUTS + tl.arange(0, OUTPUTS)
    first = tl.program_id(1).to(tl.int64) * ROWS
    end = real_rows(real, has_real, rows)
    if first < end:
        row = first + tl.arange(0, ROWS)
        sums = tl.zeros([ROWS, OUTPUTS, DEPTH], tl.float32)
        for start in range(0, depth, DEPTH):
            k = start + tl.arange(0, DEPTH)
            inside = (n < outputs)[:, None] & (k < depth)[None, :]
            w = tl.load(weight + n[:, None] * weight_stride + k[None, :], mask=inside, other=0.0).to(tl.float32)
            inside = (row < end)[:, None] & (k < depth)[None, :]
            values = tl.load(x + row[:, None] * x_stride + k[None, :], mask=inside, other=0.0)
            sums += values[:, None, :] * w[None, :, :]
        result = tl.sum(sums, 2)
        if HAS_BIAS:
            result += tl.load(bias + n, mask=n < outputs, other=0.0)[None, :]
        tl.store(out + row[:, None] * outputs + n[None, :], result, mask=(row < end)[:, None] & (n < outputs)[None, :])


@launches(BY_LAYOUT["f32"], BY_LAYOUT["bf16"], BY_LAYOUT["f16"])
def launch(
    *, x: Tensor, weight: Tensor, bias: Tensor | None, real: Tensor | None, out: Tensor, x_stride: int,
    weight_stride: int, rows: int, depth: int, outputs: int, **others: object,
) -> None:  # fmt: skip
    grid = (triton.cdiv(outputs, OUTPUTS), triton.cdiv(rows, ROWS))
    linear_plain[grid](
        x, weight, weight if bias is None else bias, *stated(real, out), out, x_stride,
        weight_stride // weight.element_size(), rows, depth, outputs, bias is not None, ROWS, OUTPUTS, DEPTH,
    )  # fmt: skip
