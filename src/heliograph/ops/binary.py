"""What silu_mul and add share: two matrices of one shape, row by row, into a contiguous result."""

from __future__ import annotations

from heliograph.ops.arguments import Call, blocks
from heliograph.ops.launch import Kernel, ParamBlock, Recorder, View

PARAMS = ParamBlock(
    ("x", "ptr"), ("y", "ptr"), ("real", "ptr"), ("out", "ptr"), ("x_stride", "u64"), ("y_stride", "u64"),
    ("rows", "u32"), ("columns", "u32"), ("columns_per_block", "u32"),
)  # fmt: skip
BLOCK_COLUMNS = 512


def lower_binary(recorder: Recorder, call: Call, kernel: Kernel, names: tuple[str, str], out: View) -> None:
    x, y = (call.view(name, "f32", range(1, 9)) for name in names)
    call.require(x.shape == y.shape, f"shapes {list(x.shape)} and {list(y.shape)}", "equal shapes")
    real = call.real()
    call.require(real is None or len(x.shape) == 2, f"real rows of shape {list(x.shape)}", "matrices")
    left, right = call.rows(names[0], x), call.rows(names[1], y)
    recorder.launch(
        kernel, left.count * blocks(left.columns, BLOCK_COLUMNS), x=x, y=y, real=real, out=out,
        x_stride=left.stride, y_stride=right.stride, rows=left.count, columns=left.columns,
        columns_per_block=BLOCK_COLUMNS,
    )  # fmt: skip
