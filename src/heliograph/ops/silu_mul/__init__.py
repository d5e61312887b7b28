"""``silu_mul(gate f32[..., F], up f32[..., F], real i32[1]?) -> f32[..., F]``: gate / (1 + exp(-gate)) * up, element by
element. Of matrices the rows from ``real`` on are padding.

Tolerance: RELATIVE of the exact value.

``reference``   the op in plain PyTorch
``triton``      the op on CUDA
"""

from __future__ import annotations

from collections.abc import Mapping

from heliograph.ops.arguments import Call
from heliograph.ops.binary import PARAMS, lower_binary
from heliograph.ops.launch import Kernel, Recorder, View, lowers

RELATIVE = 2.0**-21

SILU_MUL = Kernel("glue", "silu_mul_f32", PARAMS)
KERNELS = (SILU_MUL,)


@lowers("heliograph.silu_mul.default")
def lower(recorder: Recorder, args: tuple[object, ...], keywords: Mapping[str, object], outs: tuple[View, ...]) -> None:
    names = ("gate", "up")
    lower_binary(recorder, Call("silu_mul", (*names, "real"), args, keywords), SILU_MUL, names, outs[0])
