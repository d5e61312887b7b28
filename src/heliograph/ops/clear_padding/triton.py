"""clear_padding on CUDA: a program writes COLUMNS zeros of a padding row."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from heliograph.ops.clear_padding import CLEAR_PADDING
from heliograph.ops.triton_launch import launches

COLUMNS = 1024


@triton.jit(do_not_specialize=["columns"], do_not_specialize_on_alignment=["x", "real"])
def clear_padding_f32(x, real, columns, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    padding = row >= tl.load(real)
    tl.store(x + row * columns + c, tl.zeros([COLUMNS], tl.float32), mask=(c < columns) & padding)


@launches(CLEAR_PADDING)
def launch(*, x: Tensor, real: Tensor, rows: int, columns: int, **others: object) -> None:
    clear_padding_f32[(rows, triton.cdiv(columns, COLUMNS))](x, real, columns, COLUMNS)
