"""``linear(x f32[T, K], weight, bias f32[N]?, layout, out_features, real i32[1]?) -> f32[T, N]``: x times weight
transposed.

``weight`` is [N, K] in a layout of ``ops.layouts``; products and sums are f32 on the layout's exact values. Lane
k mod 16 of a dot product is one chain of fused multiply-adds in ascending k, then the lanes are folded in a fixed
tree and the bias is added: one order, however many rows are computed together. Rows from ``real`` on are padding.

Tolerance: an output differs from the exact one by at most ERROR times the sum of the absolute terms, in every layout.

``reference``   the op in plain PyTorch, and ``dequantise``
``triton``      the op on CUDA
"""

from __future__ import annotations

from collections.abc import Mapping

from heliograph.ops.arguments import Call, blocks
from heliograph.ops.launch import Kernel, ParamBlock, Recorder, View, lowers
from heliograph.ops.layouts import LAYOUTS, weight_view

ERROR = 2.0**-18
BLOCK_OUTPUTS, BLOCK_ROWS = 8, 48

PARAMS = ParamBlock(
    ("x", "ptr"), ("weight", "ptr"), ("bias", "ptr"), ("real", "ptr"), ("out", "ptr"), ("x_stride", "u64"),
    ("weight_stride", "u64"), ("rows", "u32"), ("depth", "u32"), ("outputs", "u32"),
)  # fmt: skip
BY_LAYOUT = {layout: Kernel("linear", f"linear_{layout}", PARAMS) for layout in LAYOUTS}
KERNELS = tuple(BY_LAYOUT.values())


@lowers("heliograph.linear.default")
def lower(recorder: Recorder, args: tuple[object, ...], keywords: Mapping[str, object], outs: tuple[View, ...]) -> None:
    call = Call("linear", ("x", "weight", "bias", "layout", "out_features", "real"), args, keywords)
    x, outputs = call.view("x", "f32", 2), call.integer("out_features")
    rows = call.rows("x", x)
    layout, weight, stride = weight_view(call, rows.columns)
    call.require(weight.shape[0] == outputs, f"{weight.shape[0]} weight rows", f"out_features {outputs}")
    recorder.launch(
        BY_LAYOUT[layout], blocks(outputs, BLOCK_OUTPUTS) * blocks(rows.count, BLOCK_ROWS), x=x, weight=weight,
        bias=call.optional_vector("bias", "f32", outputs), real=call.real(), out=outs[0],
        x_stride=rows.stride, weight_stride=stride, rows=rows.count, depth=rows.columns, outputs=outputs,
    )  # fmt: skip
