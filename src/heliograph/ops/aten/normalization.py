"""Layer, group and batch normalisation. Statistics of a row in f32, two passes.

Tolerance against PyTorch: within RELATIVE of the larger of the result and 1, times the largest weight.
"""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.ops.aten.call import Call, aten
from heliograph.ops.aten.pointwise import blocks, copy_into, dense, emit, settle, temporary
from heliograph.ops.aten.reductions import reduce
from heliograph.ops.aten.strided import count, flatten, unsqueeze
from heliograph.ops.launch import Kernel, ParamBlock, View

RELATIVE = {"f32": 2.0**-17, "f16": 2.0**-9, "bf16": 2.0**-6}
ELEMENTS_PER_BLOCK = 8192

_NORMALIZE = Kernel(
    "aten_rows", "normalize",
    ParamBlock(
        ("out", "ptr"), ("mean", "ptr"), ("rstd", "ptr"), ("source", "ptr"), ("weight", "ptr"), ("bias", "ptr"),
        ("rows", "u64"), ("length", "u64"), ("repeat", "u64"), ("groups", "u64"), ("epsilon", "f64"),
        ("out_type", "u32"), ("stat_type", "u32"), ("in_type", "u32"), ("weight_type", "u32"), ("bias_type", "u32"),
        ("rows_per_block", "u32"),
    ),
)  # fmt: skip
KERNELS = (_NORMALIZE,)


def _normalize(
    call: Call, source: View, weight: View | None, bias: View | None, rows: int, repeat: int, groups: int, eps: float
) -> None:
    out, mean, rstd = call.outs
    call.real(source.dtype, out.dtype)
    if not source.numel:
        return
    length = source.numel // rows
    rows_per_block = max(1, ELEMENTS_PER_BLOCK // length)
    written = temporary(call, out)
    weight, bias = (None if view is None else dense(call, view) for view in (weight, bias))
    call.recorder.launch(
        _NORMALIZE, blocks(rows, rows_per_block), out=written, mean=mean, rstd=rstd, source=dense(call, source),
        weight=weight, bias=bias, rows=rows, length=length, repeat=repeat, groups=groups, epsilon=eps,
        out_type=call.code(out.dtype), stat_type=call.code(mean.dtype), in_type=call.code(source.dtype),
        weight_type=call.optional_code(weight), bias_type=call.optional_code(bias), rows_per_block=rows_per_block,
    )  # fmt: skip
    settle(call, out, written)


@aten("native_layer_norm.default")
def lower_layer_norm(
    call: Call, input: View, normalized_shape: Sequence[int], weight: View | None, bias: View | None, eps: float
) -> None:
    rows = count(input.shape[: len(input.shape) - len(normalized_shape)])
    _normalize(call, input, weight, bias, rows, 1, 1, eps)


@aten("native_group_norm.default")
def lower_group_norm(
    call: Call, input: View, weight: View | None, bias: View | None, N: int, C: int, HxW: int, group: int, eps: float
) -> None:
    _normalize(call, input, weight, bias, N * group, HxW, group, eps)


# ---- batch normalisation: y = x * scale + shift, both per channel ----------------------------------------------------
def _per_channel(view: View, rank: int) -> View:
    for _ in range(rank - 2):
        view = unsqueeze(view, 1)
    return view


def _scale_and_shift(call: Call, input: View, weight: View | None, bias: View | None, mean: View, rstd: View) -> None:
    scale, shift = (call.recorder.scratch(mean.shape, "f32") for _ in range(2))
    emit(call, "mul", "f32", scale, rstd, 1.0 if weight is None else weight)
    emit(call, "mul", "f32", shift, mean, scale)
    emit(call, "sub", "f32", shift, 0.0 if bias is None else bias, shift)
    rank = len(input.shape)
    emit(call, "scale_shift", "f32", call.out, input, _per_channel(scale, rank), _per_channel(shift, rank))


def _reciprocal_deviation(call: Call, variance: View, eps: float) -> View:
    rstd = call.recorder.scratch(variance.shape, "f32")
    emit(call, "add", "f32", rstd, variance, eps)
    emit(call, "rsqrt", "f32", rstd, rstd)
    return rstd


@aten("_native_batch_norm_legit_no_training.default")
def lower_batch_norm(
    call: Call,
    input: View,
    weight: View | None,
    bias: View | None,
    running_mean: View,
    running_var: View,
    momentum: float,
    eps: float,
) -> None:
    call.real(input.dtype)
    rstd = _reciprocal_deviation(call, running_var, eps)
    _scale_and_shift(call, input, weight, bias, running_mean, rstd)
    for saved, value in zip(call.outs[1:], (running_mean, rstd), strict=True):
        if saved.numel:  # empty on the CPU
            copy_into(call, saved, value)


@aten("native_batch_norm.default")
def lower_native_batch_norm(
    call: Call,
    input: View,
    weight: View | None,
    bias: View | None,
    running_mean: View | None,
    running_var: View | None,
    training: bool,
    momentum: float,
    eps: float,
) -> None:
    if running_mean is None or running_var is None:
        lower_instance_norm(call, input, weight, bias, training, momentum, eps)
    elif training:
        raise call.refusal("running statistics that are updated", "the model in eval mode")
    else:
        lower_batch_norm(call, input, weight, bias, running_mean, running_var, momentum, eps)


@aten("_native_batch_norm_legit.no_stats")
def lower_instance_norm(
    call: Call, input: View, weight: View | None, bias: View | None, training: bool, momentum: float, eps: float
) -> None:
    """Statistics of the batch itself: what instance normalisation becomes."""
    call.real(input.dtype)
    channels = (input.shape[1],)
    mean, variance = (call.recorder.scratch(channels, "f32") for _ in range(2))
    others = [d for d in range(len(input.shape)) if d != 1]
    n = count([input.shape[d] for d in others])
    reduce(call, "var", "f32", variance, input, others, divisor=float(n), second=mean)
    rstd = _reciprocal_deviation(call, variance, eps)
    emit(call, "copy", "f32", flatten(call.outs[1], channels), mean)
    emit(call, "copy", "f32", flatten(call.outs[2], channels), rstd)
    _scale_and_shift(call, input, weight, bias, mean, rstd)
