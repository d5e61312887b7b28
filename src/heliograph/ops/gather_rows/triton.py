"""gather_rows on CUDA: a program copies COLUMNS columns of a row."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from heliograph.ops.gather_rows import GATHER_ROWS
from heliograph.ops.triton_launch import launches

COLUMNS = 1024


@triton.jit(do_not_specialize=["x_stride", "rows", "columns"], do_not_specialize_on_alignment=["x", "index", "out"])
def gather_rows_f32(x, index, out, x_stride, rows, columns, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    source = tl.load(index + row).to(tl.int64)
    known = (source >= 0) & (source < rows)
    values = tl.load(x + source * x_stride + c, mask=(c < columns) & known, other=0.0)
    tl.store(out + row * columns + c, values, mask=c < columns)


@launches(GATHER_ROWS)
def launch(
    *, x: Tensor, index: Tensor, out: Tensor, x_stride: int, rows: int, columns: int, count: int, **others: object
) -> None:
    grid = (count, triton.cdiv(columns, COLUMNS))
    gather_rows_f32[grid](x, index, out, x_stride, rows, columns, COLUMNS)
