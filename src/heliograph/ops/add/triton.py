"""add on CUDA: a program computes COLUMNS columns of a row."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from heliograph.ops.add import ADD
from heliograph.ops.triton_launch import launches, stated
from heliograph.ops.triton_math import real_rows

COLUMNS = 1024


@triton.jit(
    do_not_specialize=["has_real", "x_stride", "y_stride", "rows", "columns"],
    do_not_specialize_on_alignment=["x", "y", "real", "out"],
)
def add_f32(x, y, real, has_real, out, x_stride, y_stride, rows, columns, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (c < columns) & (row < real_rows(real, has_real, rows))
    left = tl.load(x + row * x_stride + c, mask=inside)
    right = tl.load(y + row * y_stride + c, mask=inside)
    tl.store(out + row * columns + c, left + right, mask=inside)


@launches(ADD)
def launch(
    *, x: Tensor, y: Tensor, real: Tensor | None, out: Tensor, x_stride: int, y_stride: int, rows: int, columns: int,
    **others: object,
) -> None:  # fmt: skip
    grid = (rows, triton.cdiv(columns, COLUMNS))
    add_f32[grid](x, y, *stated(real, out), out, x_stride, y_stride, rows, columns, COLUMNS)
