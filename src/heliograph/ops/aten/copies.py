"""Ops that move or make elements: copies and casts, joining, padding, repeating, filling. All exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heliograph.ops.aten.call import Call, aten
from heliograph.ops.aten.element import Operand, Scalar
from heliograph.ops.aten.pointwise import arange, copy_into
from heliograph.ops.aten.strided import expand, narrow, row_major, select
from heliograph.ops.launch import View


@aten("clone.default", "_to_copy.default", "lift_fresh_copy.default")
def lower_clone(call: Call, self: View, **_layout: object) -> None:
    """Type, strides and memory format are those of the output."""
    copy_into(call, call.out, self)


@aten("copy.default", in_place=True)
def lower_copy(call: Call, self: View, src: View, non_blocking: bool = False) -> None:
    copy_into(call, call.out, src)


# ---- values out of nothing -----------------------------------------------------------------------------------------
@aten("full.default")
def lower_full(call: Call, size: Sequence[int], fill_value: Scalar, **_layout: object) -> None:
    copy_into(call, call.out, fill_value)


@aten("full_like.default")
def lower_full_like(call: Call, self: View, fill_value: Scalar, **_layout: object) -> None:
    copy_into(call, call.out, fill_value)


@aten("new_full.default")
def lower_new_full(call: Call, self: View, size: Sequence[int], fill_value: Scalar, **_layout: object) -> None:
    copy_into(call, call.out, fill_value)


@aten("zeros.default", "zeros_like.default", "new_zeros.default")
def lower_zeros(call: Call, *_like: object, **_layout: object) -> None:
    copy_into(call, call.out, 0)


@aten("ones.default", "ones_like.default", "new_ones.default")
def lower_ones(call: Call, *_like: object, **_layout: object) -> None:
    copy_into(call, call.out, 1)


@aten("scalar_tensor.default")
def lower_scalar_tensor(call: Call, s: Scalar, **_layout: object) -> None:
    copy_into(call, call.out, s)


@aten("fill.Scalar", "fill.Tensor", in_place=True)
def lower_fill(call: Call, self: View, value: Operand) -> None:
    copy_into(call, call.out, value)


@aten("zero.default", in_place=True)
def lower_zero(call: Call, self: View) -> None:
    copy_into(call, call.out, 0)


@aten("arange.default")
def lower_arange(call: Call, end: Scalar, **_layout: object) -> None:
    arange(call, call.out, 0, 1)


@aten("arange.start", "arange.start_step")
def lower_arange_start(call: Call, start: Scalar, end: Scalar, step: Scalar = 1, **_layout: object) -> None:
    arange(call, call.out, start, step)


# ---- joining and cutting -------------------------------------------------------------------------------------------
@aten("cat.default")
def lower_cat(call: Call, tensors: Sequence[View], dim: int = 0) -> None:
    axis = call.axis(dim, len(call.out.shape))
    at = 0
    for tensor in tensors:
        if len(tensor.shape) != len(call.out.shape):
            continue  # an empty vector joins anything
        copy_into(call, narrow(call.out, axis, at, tensor.shape[axis]), tensor)
        at += tensor.shape[axis]


@aten("stack.default")
def lower_stack(call: Call, tensors: Sequence[View], dim: int = 0) -> None:
    axis = call.axis(dim, len(call.out.shape))
    for i, tensor in enumerate(tensors):
        copy_into(call, select(call.out, axis, i), tensor)


@aten("slice_scatter.default")
def lower_slice_scatter(
    call: Call, self: View, src: View, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> None:
    axis = call.axis(dim, len(self.shape))
    first, stop, step = slice(start, end, step).indices(self.shape[axis])
    copy_into(call, call.out, self)
    copy_into(call, narrow(call.out, axis, first, len(range(first, stop, step)), step), src)


@aten("select_scatter.default")
def lower_select_scatter(call: Call, self: View, src: View, dim: int, index: int) -> None:
    axis = call.axis(dim, len(self.shape))
    copy_into(call, call.out, self)
    copy_into(call, select(call.out, axis, index % self.shape[axis]), src)


@aten("constant_pad_nd.default")
def lower_constant_pad_nd(call: Call, self: View, pad: Sequence[int], value: Scalar = 0) -> None:
    """``pad`` goes from the last dimension to the first, before and behind; a negative number cuts."""
    copy_into(call, call.out, value)
    source, target = self, call.out
    for i in range(len(pad) // 2):
        axis, before, behind = len(self.shape) - 1 - i, pad[2 * i], pad[2 * i + 1]
        kept = max(0, self.shape[axis] + min(before, 0) + min(behind, 0))
        source = narrow(source, axis, max(0, -before), kept)
        target = narrow(target, axis, max(0, before), kept)
    copy_into(call, target, source)


@aten("repeat.default")
def lower_repeat(call: Call, self: View, repeats: Sequence[int]) -> None:
    """The output as [repeats[0], shape[0], repeats[1], shape[1], ...], to which the input is broadcast."""
    shape = (1,) * (len(repeats) - len(self.shape)) + self.shape
    strides = (0,) * (len(repeats) - len(self.shape)) + self.strides
    paired = tuple(n for pair in zip(repeats, shape, strict=True) for n in pair)
    once = tuple(n for extent in shape for n in (1, extent))
    steps = tuple(n for stride in strides for n in (0, stride))
    call.require(call.out.contiguous, f"strides {list(call.out.strides)}", "a contiguous result")
    out = replace(call.out, shape=paired, strides=row_major(paired))
    copy_into(call, out, expand(replace(self, shape=once, strides=steps), paired))


@aten("flip.default")
def lower_flip(call: Call, self: View, dims: Sequence[int]) -> None:
    source = self
    for dim in dims:
        axis = call.axis(dim, len(self.shape))
        if self.shape and self.shape[axis] > 1:
            source = narrow(source, axis, self.shape[axis] - 1, self.shape[axis], -1)
    copy_into(call, call.out, source)
