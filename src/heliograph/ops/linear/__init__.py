"""``linear(x f32[T, K], weight, bias f32[N]?, layout, out_features) -> f32[T, N]``: x times weight transposed.

``weight`` is [N, K] in a layout of ``ops.layouts``; products and sums are f32 on the layout's exact values. Lane
k mod 16 of a dot product is one chain of fused multiply-adds in ascending k, then the lanes are folded in a fixed
tree and the bias is added. ``few`` decodes weights in registers and ``many`` once for a tile of rows: the same
order, the same bits. Few rows are at most FEW_ROWS (measured 2026-11-30 on two Zen 3 cores: they are equal at 4 to 6).

Tolerance: an output differs from the exact one by at most ERROR times the sum of the absolute terms, in every layout.

``reference``   the op in plain PyTorch, and ``dequantise``
"""

from __future__ import annotations

from collections.abc import Mapping

from heliograph.ops.arguments import Call, blocks
from heliograph.ops.launch import Kernel, ParamBlock, Recorder, View, lowers
from heliograph.ops.layouts import LAYOUTS, weight_view

ERROR = 2.0**-18
FEW_ROWS = 6
FEW_OUTPUTS = 16  # outputs of a block of `few`
MANY_OUTPUTS, MANY_ROWS = 8, 48  # outputs and rows of a block of `many`

PARAMS = ParamBlock(
    ("x", "ptr"), ("weight", "ptr"), ("bias", "ptr"), ("out", "ptr"), ("x_stride", "u64"), ("weight_stride", "u64"),
    ("rows", "u32"), ("depth", "u32"), ("outputs", "u32"),
)  # fmt: skip
FEW = {layout: Kernel("linear", f"linear_{layout}_few", PARAMS) for layout in LAYOUTS}
MANY = {layout: Kernel("linear", f"linear_{layout}_many", PARAMS) for layout in LAYOUTS}
KERNELS = (*FEW.values(), *MANY.values())


@lowers("heliograph.linear.default")
def lower(recorder: Recorder, args: tuple[object, ...], keywords: Mapping[str, object], outs: tuple[View, ...]) -> None:
    call = Call("linear", ("x", "weight", "bias", "layout", "out_features"), args, keywords)
    x, outputs = call.view("x", "f32", 2), call.integer("out_features")
    rows = call.rows("x", x)
    layout, weight, stride = weight_view(call, rows.columns)
    call.require(weight.shape[0] == outputs, f"{weight.shape[0]} weight rows", f"out_features {outputs}")
    if rows.count <= FEW_ROWS:
        kernel, grid = FEW[layout], blocks(outputs, FEW_OUTPUTS)
    else:
        kernel, grid = MANY[layout], blocks(outputs, MANY_OUTPUTS) * blocks(rows.count, MANY_ROWS)
    recorder.launch(
        kernel, grid if rows.count else 0, x=x, weight=weight, bias=call.optional_vector("bias", "f32", outputs),
        out=outs[0], x_stride=rows.stride, weight_stride=stride, rows=rows.count, depth=rows.columns, outputs=outputs,
    )  # fmt: skip
