"""``gather_rows(x f32[T, C], index i32[R]) -> f32[R, C]``: out[r] = x[index[r]]; an index outside gives zeros. Exact.

``reference``   the op in plain PyTorch
``triton``      the op on CUDA
"""

from __future__ import annotations

from collections.abc import Mapping

from heliograph.ops.arguments import Call
from heliograph.ops.launch import Kernel, ParamBlock, Recorder, View, lowers

GATHER_ROWS = Kernel(
    "glue", "gather_rows_f32",
    ParamBlock(
        ("x", "ptr"), ("index", "ptr"), ("out", "ptr"), ("x_stride", "u64"), ("rows", "u32"), ("columns", "u32"),
        ("count", "u32"),
    ),
)  # fmt: skip
KERNELS = (GATHER_ROWS,)


@lowers("heliograph.gather_rows.default")
def lower(recorder: Recorder, args: tuple[object, ...], keywords: Mapping[str, object], outs: tuple[View, ...]) -> None:
    call = Call("gather_rows", ("x", "index"), args, keywords)
    x, index = call.view("x", "f32", 2), call.vector("index", "i32")
    rows = call.rows("x", x)
    recorder.launch(
        GATHER_ROWS, index.shape[0] if rows.columns else 0, x=x, index=index, out=outs[0], x_stride=rows.stride,
        rows=rows.count, columns=rows.columns, count=index.shape[0],
    )  # fmt: skip
