"""Pooling and resampling of images, in f32, f16, bf16 computed in f32.

Tolerances against PyTorch: maxima and nearest exact; averages and bilinear within RELATIVE of the largest input.
"""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.ops.aten.call import Call, aten
from heliograph.ops.aten.pointwise import blocks, settle, temporary
from heliograph.ops.aten.strided import unsqueeze
from heliograph.ops.launch import Kernel, ParamBlock, View

RELATIVE = {"f32": 2.0**-20, "f16": 2.0**-10, "bf16": 2.0**-7}
OUTPUTS_PER_BLOCK = 1024  # native/host/kernels/aten_window.cpp: kOutputsPerBlock

_BLOCK = ParamBlock(
    ("out", "ptr"), ("indices", "ptr"), ("source", "ptr"), ("planes", "u64"), ("channels", "u64"),
    ("in_strides", "i64", 4), ("in_size", "i64", 2), ("out_size", "i64", 2), ("window", "i64", 2), ("stride", "i64", 2),
    ("padding", "i64", 2), ("dilation", "i64", 2), ("divisor", "i64"), ("scale_y", "f64"), ("scale_x", "f64"),
    ("out_type", "u32"), ("in_type", "u32"), ("include_padding", "u32"), ("align_corners", "u32"),
)  # fmt: skip
_KERNELS = {
    name: Kernel("aten_window", name, _BLOCK)
    for name in ("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "upsample_nearest2d", "upsample_bilinear2d")
}
KERNELS = tuple(_KERNELS.values())

Pair = tuple[int, int]


def _launch(
    call: Call,
    name: str,
    source: View,
    *,
    indices: View | None = None,
    window: Pair = (1, 1),
    stride: Pair = (1, 1),
    padding: Pair = (0, 0),
    dilation: Pair = (1, 1),
    divisor: int = 0,
    scale: tuple[float, float] = (1.0, 1.0),
    include_padding: bool = False,
    align_corners: bool = False,
) -> None:
    call.real(source.dtype)
    if not call.out.numel:
        return
    if len(source.shape) == 3:
        source = unsqueeze(source, 0)
    written, at = temporary(call, call.out), None if indices is None else temporary(call, indices)
    call.recorder.launch(
        _KERNELS[name], blocks(call.out.numel, OUTPUTS_PER_BLOCK), out=written, indices=at,
        planes=source.shape[0] * source.shape[1], channels=source.shape[1], in_strides=source.strides,
        in_size=source.shape[2:], out_size=call.out.shape[-2:], window=window, stride=stride, padding=padding,
        dilation=dilation, divisor=divisor, scale_y=scale[0], scale_x=scale[1], out_type=call.code(call.out.dtype),
        in_type=call.code(source.dtype), include_padding=int(include_padding), align_corners=int(align_corners),
        source=source,
    )  # fmt: skip
    settle(call, call.out, written)
    if indices is not None and at is not None:
        settle(call, indices, at)


def _pair(given: Sequence[int] | int, absent: Pair = (1, 1)) -> Pair:
    values = (given,) if isinstance(given, int) else tuple(given)
    if not values:
        return absent
    return (values[0], values[-1])


@aten("max_pool2d_with_indices.default")
def lower_max_pool2d(
    call: Call,
    self: View,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> None:
    """``ceil_mode`` is in the output's shape."""
    window = _pair(kernel_size)
    _launch(
        call, "max_pool2d", self, indices=call.outs[1], window=window, stride=_pair(stride, window),
        padding=_pair(padding), dilation=_pair(dilation),
    )  # fmt: skip


@aten("avg_pool2d.default")
def lower_avg_pool2d(
    call: Call,
    self: View,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> None:
    window = _pair(kernel_size)
    _launch(
        call, "avg_pool2d", self, window=window, stride=_pair(stride, window), padding=_pair(padding),
        divisor=divisor_override or 0, include_padding=count_include_pad,
    )  # fmt: skip


@aten("_adaptive_avg_pool2d.default")
def lower_adaptive_avg_pool2d(call: Call, self: View, output_size: Sequence[int]) -> None:
    _launch(call, "adaptive_avg_pool2d", self)


# ---- resampling ----------------------------------------------------------------------------------------------------
def _scales(call: Call, self: View, given: Sequence[float | None], align_corners: bool = False) -> tuple[float, float]:
    """Input elements an output element, along rows and columns: what was given, else the ratio of the sizes."""
    scales = []
    for axis, factor in zip((-2, -1), given, strict=True):
        wide, out = self.shape[axis], call.out.shape[axis]
        if align_corners:
            scales.append((wide - 1) / (out - 1) if out > 1 else 0.0)
        else:
            scales.append(1.0 / factor if factor else wide / out)
    return scales[0], scales[1]


@aten("upsample_nearest2d.default")
def lower_upsample_nearest2d(
    call: Call, self: View, output_size: Sequence[int], scales_h: float | None = None, scales_w: float | None = None
) -> None:
    _launch(call, "upsample_nearest2d", self, scale=_scales(call, self, (scales_h, scales_w)))


@aten("upsample_nearest2d.vec")
def lower_upsample_nearest2d_vec(
    call: Call, input: View, output_size: Sequence[int] | None, scale_factors: Sequence[float] | None
) -> None:
    _launch(call, "upsample_nearest2d", input, scale=_scales(call, input, scale_factors or (None, None)))


@aten("upsample_bilinear2d.default")
def lower_upsample_bilinear2d(
    call: Call,
    self: View,
    output_size: Sequence[int],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> None:
    scale = _scales(call, self, (scales_h, scales_w), align_corners)
    _launch(call, "upsample_bilinear2d", self, scale=scale, align_corners=align_corners)


@aten("upsample_bilinear2d.vec")
def lower_upsample_bilinear2d_vec(
    call: Call,
    input: View,
    output_size: Sequence[int] | None,
    align_corners: bool,
    scale_factors: Sequence[float] | None,
) -> None:
    scale = _scales(call, input, scale_factors or (None, None), align_corners)
    _launch(call, "upsample_bilinear2d", input, scale=scale, align_corners=align_corners)
