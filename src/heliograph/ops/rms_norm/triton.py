"""rms_norm on CUDA: a program normalises a row. Lane i mod COLUMNS sums the squares in ascending i."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from heliograph.ops.rms_norm import RMS_NORM
from heliograph.ops.triton_launch import launches, stated
from heliograph.ops.triton_math import real_rows

COLUMNS = 512


@triton.jit(
    do_not_specialize=["has_real", "outer_stride", "inner_stride", "inner", "rows", "dim"],
    do_not_specialize_on_alignment=["x", "real", "out"],
)
def rms_norm_f32(
    x, weight, real, has_real, out, outer_stride, inner_stride, inner, rows, dim, eps, COLUMNS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    outer = row // inner
    if outer < real_rows(real, has_real, rows // inner):
        source = x + outer * outer_stride + row % inner * inner_stride
        squares = tl.zeros([COLUMNS], tl.float32)
        for start in range(0, dim, COLUMNS):
            c = start + tl.arange(0, COLUMNS)
            values = tl.load(source + c, mask=c < dim, other=0.0)
            squares += values * values
        mean = tl.div_rn(tl.sum(squares, 0), dim.to(tl.float32))
        scale = tl.div_rn(1.0, tl.sqrt_rn(mean + eps))
        for start in range(0, dim, COLUMNS):
            c = start + tl.arange(0, COLUMNS)
            values = tl.load(source + c, mask=c < dim, other=0.0)
            factors = tl.load(weight + c, mask=c < dim, other=0.0)
            tl.store(out + row * dim + c, values * scale * factors, mask=c < dim)


@launches(RMS_NORM)
def launch(
    *, x: Tensor, weight: Tensor, real: Tensor | None, out: Tensor, outer_stride: int, inner_stride: int, inner: int,
    rows: int, dim: int, eps: float, **others: object,
) -> None:  # fmt: skip
    rms_norm_f32[(rows,)](
        x, weight, *stated(real, out), out, outer_stride, inner_stride, inner, rows, dim, eps, COLUMNS
    )
