"""``rms_norm(x f32[..., C], weight f32[C], eps, real i32[1]?) -> f32[..., C]``: x / sqrt(mean(x^2) + eps) * weight over
the last dimension. ``x`` has rank 2 or 3; from ``real`` on its first dimension is padding.

Lane i mod 16 sums the squares in ascending i, the lanes are folded in a fixed tree. Tolerance: RELATIVE of the exact
value.

``reference``   the op in plain PyTorch
``triton``      the op on CUDA
"""

from __future__ import annotations

from collections.abc import Mapping

from heliograph.ops.arguments import Call, blocks
from heliograph.ops.launch import Kernel, ParamBlock, Recorder, View, lowers

RELATIVE = 2.0**-19
BLOCK_ELEMENTS = 2048  # a block takes whole rows until it has about so many

RMS_NORM = Kernel(
    "norm", "rms_norm_f32",
    ParamBlock(
        ("x", "ptr"), ("weight", "ptr"), ("real", "ptr"), ("out", "ptr"), ("outer_stride", "u64"),
        ("inner_stride", "u64"), ("inner", "u32"), ("rows", "u32"), ("dim", "u32"),
        ("rows_per_block", "u32"), ("eps", "f32"),
    ),
)  # fmt: skip
KERNELS = (RMS_NORM,)


@lowers("heliograph.rms_norm.default")
def lower(recorder: Recorder, args: tuple[object, ...], keywords: Mapping[str, object], outs: tuple[View, ...]) -> None:
    call = Call("rms_norm", ("x", "weight", "eps", "real"), args, keywords)
    x = call.view("x", "f32", (2, 3))
    dim = x.shape[-1]
    call.require(x.strides[-1] == 1 or dim <= 1, f"x strides {list(x.strides)}", "rows without gaps")
    inner, inner_stride = (x.shape[1], x.strides[1]) if len(x.shape) == 3 else (1, 0)
    rows = x.shape[0] * inner
    rows_per_block = max(1, BLOCK_ELEMENTS // max(1, dim))
    recorder.launch(
        RMS_NORM, blocks(rows, rows_per_block) if dim else 0, x=x, weight=call.vector("weight", "f32", dim),
        real=call.real(), out=outs[0], outer_stride=x.strides[0], inner_stride=inner_stride, inner=inner, rows=rows,
        dim=dim, rows_per_block=rows_per_block, eps=call.number("eps"),
    )  # fmt: skip
