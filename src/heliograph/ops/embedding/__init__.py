"""``embedding(ids i32[T], weight, layout, dim, real i32[1]?) -> f32[T, dim]``: rows of a table.

``weight`` is [entries, dim] in a layout of ``ops.layouts``; out[t] is row ids[t] as f32. An id outside the table gives
zeros; from ``real`` on ids are padding. Exact: the values are those of the layout, bit for bit.

``reference``   the op in plain PyTorch
``triton``      the op on CUDA
"""

from __future__ import annotations

from collections.abc import Mapping

from heliograph.ops.arguments import Call
from heliograph.ops.launch import Kernel, ParamBlock, Recorder, View, lowers
from heliograph.ops.layouts import LAYOUTS, weight_view

PARAMS = ParamBlock(
    ("ids", "ptr"), ("weight", "ptr"), ("real", "ptr"), ("out", "ptr"), ("weight_stride", "u64"),
    ("tokens", "u32"), ("entries", "u32"), ("dim", "u32"),
)  # fmt: skip
BY_LAYOUT = {layout: Kernel("embedding", f"embedding_{layout}", PARAMS) for layout in LAYOUTS}
KERNELS = tuple(BY_LAYOUT.values())


@lowers("heliograph.embedding.default")
def lower(recorder: Recorder, args: tuple[object, ...], keywords: Mapping[str, object], outs: tuple[View, ...]) -> None:
    call = Call("embedding", ("ids", "weight", "layout", "dim", "real"), args, keywords)
    ids, dim = call.vector("ids", "i32"), call.integer("dim")
    layout, weight, stride = weight_view(call, dim)
    recorder.launch(
        BY_LAYOUT[layout], ids.shape[0] if dim else 0, ids=ids, weight=weight, real=call.real(), out=outs[0],
        weight_stride=stride, tokens=ids.shape[0], entries=weight.shape[0], dim=dim,
    )  # fmt: skip
