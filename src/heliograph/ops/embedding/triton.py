"""embedding on CUDA, of plain layouts: a program widens COLUMNS columns of a token's row."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from heliograph.ops.embedding import BY_LAYOUT
from heliograph.ops.triton_launch import launches, stated
from heliograph.ops.triton_math import real_rows

COLUMNS = 1024


@triton.jit(do_not_specialize=["has_real", "tokens", "entries"], do_not_specialize_on_alignment=["ids", "real", "out"])
def embedding_plain(ids, weight, real, has_real, out, weight_stride, tokens, entries, dim, COLUMNS: tl.constexpr):
    t = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (c < dim) & (t < real_rows(real, has_real, tokens))
    entry = tl.load(ids + t).to(tl.int64)
    known = (entry >= 0) & (entry < entries)
    values = tl.load(weight + entry * weight_stride + c, mask=inside & known, other=0.0)
    tl.store(out + t * dim + c, values.to(tl.float32), mask=inside)


@launches(BY_LAYOUT["f32"], BY_LAYOUT["bf16"], BY_LAYOUT["f16"])
def launch(
    *, ids: Tensor, weight: Tensor, real: Tensor | None, out: Tensor, weight_stride: int, tokens: int, entries: int,
    dim: int, **others: object,
) -> None:  # fmt: skip
    grid = (tokens, triton.cdiv(dim, COLUMNS))
    stride = weight_stride // weight.element_size()
    embedding_plain[grid](ids, weight, *stated(real, out), out, stride, tokens, entries, dim, COLUMNS)
