"""``add(x f32[...], y f32[...], real i32[1]?) -> f32[...]``: x + y, element by element, equal shapes. Of matrices the
rows from ``real`` on are padding. Exact: one rounding.

``reference``   the op in plain PyTorch
``triton``      the op on CUDA
"""

from __future__ import annotations

from collections.abc import Mapping

from heliograph.ops.arguments import Call
from heliograph.ops.binary import PARAMS, lower_binary
from heliograph.ops.launch import Kernel, Recorder, View, lowers

ADD = Kernel("glue", "add_f32", PARAMS)
KERNELS = (ADD,)


@lowers("heliograph.add.default")
def lower(recorder: Recorder, args: tuple[object, ...], keywords: Mapping[str, object], outs: tuple[View, ...]) -> None:
    names = ("x", "y")
    lower_binary(recorder, Call("add", (*names, "real"), args, keywords), ADD, names, outs[0])
