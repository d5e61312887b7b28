"""silu_mul on CUDA: a program computes COLUMNS columns of a row."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from heliograph.ops.silu_mul import SILU_MUL
from heliograph.ops.triton_launch import launches, stated
from heliograph.ops.triton_math import exp, real_rows

COLUMNS = 1024


@triton.jit(
    do_not_specialize=["has_real", "x_stride", "y_stride", "rows", "columns"],
    do_not_specialize_on_alignment=["x", "y", "real", "out"],
)
def silu_mul_f32(x, y, real, has_real, out, x_stride, y_stride, rows, columns, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (c < columns) & (row < real_rows(real, has_real, rows))
    gate = tl.load(x + row * x_stride + c, mask=inside, other=0.0)
    up = tl.load(y + row * y_stride + c, mask=inside, other=0.0)
    tl.store(out + row * columns + c, tl.div_rn(gate, 1.0 + exp(-gate)) * up, mask=inside)


@launches(SILU_MUL)
def launch(
    *, x: Tensor, y: Tensor, real: Tensor | None, out: Tensor, x_stride: int, y_stride: int, rows: int, columns: int,
    **others: object,
) -> None:  # fmt: skip
    grid = (rows, triton.cdiv(columns, COLUMNS))
    silu_mul_f32[grid](x, y, *stated(real, out), out, x_stride, y_stride, rows, columns, COLUMNS)
