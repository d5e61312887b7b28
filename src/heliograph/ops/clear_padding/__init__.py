"""``clear_padding(x f32[R, C], real i32[1]) -> ()``: rows of ``x`` from ``real`` on become zeros.

For what leaves a graph: behind the real rows other ops leave whatever was there. Exact.

``reference``   the op in plain PyTorch
``triton``      the op on CUDA
"""

from __future__ import annotations

from collections.abc import Mapping

from heliograph.ops.arguments import Call
from heliograph.ops.launch import Kernel, ParamBlock, Recorder, View, lowers

CLEAR_PADDING = Kernel(
    "glue", "clear_padding_f32", ParamBlock(("x", "ptr"), ("real", "ptr"), ("rows", "u32"), ("columns", "u32"))
)
KERNELS = (CLEAR_PADDING,)


@lowers("heliograph.clear_padding.default")
def lower(recorder: Recorder, args: tuple[object, ...], keywords: Mapping[str, object], outs: tuple[View, ...]) -> None:
    call = Call("clear_padding", ("x", "real"), args, keywords)
    x, real = call.contiguous("x", "f32", 2), call.vector("real", "i32", 1)
    rows, columns = x.shape
    recorder.launch(CLEAR_PADDING, rows if columns else 0, x=x, real=real, rows=rows, columns=columns)
