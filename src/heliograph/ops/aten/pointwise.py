"""Launches of pointwise kernels: any operands that broadcast to the output, any types and strides.

The compute type says how elements are read and what is computed; each operand has a type of its own, so promotion
costs no pass over memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import copysign

from heliograph.ops.aten.call import Call
from heliograph.ops.aten.element import COMPUTES, Operand, Scalar, compute_type, constant_bits, is_float
from heliograph.ops.aten.strided import MAX_RANK, expand
from heliograph.ops.launch import ITEM_BYTES, Kernel, ParamBlock, Value, View

ELEMENTS_PER_BLOCK = 4096  # native/host/kernels/elementwise.h: kElementsPerBlock
_REAL = ("f32", "f64")
_INTEGER = ("i64",)

_POINTWISE = "aten_pointwise"
_MATH = "aten_math"
# Kernels by name: family, number of inputs, compute types.
_TABLE: Mapping[str, tuple[str, int, tuple[str, ...]]] = {
    **dict.fromkeys(("copy", "neg", "abs", "sign", "relu", "logical_not"), (_POINTWISE, 1, COMPUTES)),
    **dict.fromkeys(("isnan", "isinf", "reciprocal"), (_POINTWISE, 1, _REAL)),
    "bitwise_not": (_POINTWISE, 1, _INTEGER),
    **dict.fromkeys(
        ("add", "sub", "mul", "eq", "ne", "lt", "le", "gt", "ge", "minimum", "maximum", "logical_and", "logical_or",
         "logical_xor", "div_trunc", "div_floor", "fmod", "remainder", "pow"), (_POINTWISE, 2, COMPUTES),
    ),
    "div": (_POINTWISE, 2, _REAL),
    **dict.fromkeys(
        ("bitwise_and", "bitwise_or", "bitwise_xor", "shift_left", "shift_right"), (_POINTWISE, 2, _INTEGER),
    ),
    **dict.fromkeys(("add_scaled", "scale_shift", "where", "clamp", "triu", "tril"), (_POINTWISE, 3, COMPUTES)),
    **dict.fromkeys(("leaky", "elu"), (_POINTWISE, 3, _REAL)),
    **dict.fromkeys(
        ("exp", "log", "sin", "cos", "tanh", "erf", "sqrt", "rsqrt", "sigmoid", "silu", "gelu", "gelu_tanh", "expm1",
         "exp2", "log2", "log10", "log1p", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh",
         "floor", "ceil", "trunc", "round"), (_MATH, 1, _REAL),
    ),
    "atan2": (_MATH, 2, _REAL),
}  # fmt: skip


def _block(inputs: int) -> ParamBlock:
    pointers = [("out", "ptr"), *((f"in{i}", "ptr") for i in range(inputs))]
    return ParamBlock(
        *pointers, ("constants", "u64", inputs), ("shape", "i64", MAX_RANK),
        ("strides", "i64", (inputs + 1) * MAX_RANK), ("count", "u64"), ("rank", "u32"), ("types", "u32", inputs + 1),
    )  # fmt: skip


_BLOCKS = {inputs: _block(inputs) for inputs in (1, 2, 3)}
_KERNELS = {
    f"{name}_{compute}": Kernel(family, f"{name}_{compute}", _BLOCKS[inputs])
    for name, (family, inputs, computes) in _TABLE.items()
    for compute in computes
}
_ARANGE_BLOCK = ParamBlock(
    ("out", "ptr"), ("start", "u64"), ("step", "u64"), ("stride", "i64"), ("count", "u64"), ("type", "u32")
)
_ARANGE = {compute: Kernel(_POINTWISE, f"arange_{compute}", _ARANGE_BLOCK) for compute in ("f64", "i64")}
_MOVE_BLOCK = ParamBlock(
    ("out", "ptr"), ("source", "ptr"), ("shape", "i64", MAX_RANK), ("strides", "i64", 2 * MAX_RANK), ("count", "u64"),
    ("rank", "u32"),
)  # fmt: skip
_MOVE = {size: Kernel(_POINTWISE, f"move_{size}", _MOVE_BLOCK) for size in (1, 2, 4, 8)}
KERNELS = (*_KERNELS.values(), *_ARANGE.values(), *_MOVE.values())


def padded(*rows: tuple[int, ...]) -> list[int]:
    """Rows of MAX_RANK numbers, one behind the other."""
    return [n for row in rows for n in (*row, *(0,) * (MAX_RANK - len(row)))]


def emit(call: Call, name: str, compute: str, out: View, *operands: Operand) -> None:
    """Computes ``out = name(*operands)`` element by element."""
    kernel = _KERNELS.get(f"{name}_{compute}")
    if kernel is None:
        raise call.refusal(f"{name} of type {compute}", "a type that the op has a kernel for")
    if not out.numel:
        return
    views = [out, *(expand(o, out.shape) if isinstance(o, View) else expand(out, out.shape) for o in operands)]
    merged = call.walk(out.shape, *(view.strides for view in views), reorder=True)
    params: dict[str, Value | None] = {
        f"in{i}": view if isinstance(operand, View) else None
        for i, (operand, view) in enumerate(zip(operands, views[1:], strict=True))
    }
    constants = [0 if isinstance(operand, View) else constant_bits(operand, compute) for operand in operands]
    types = [call.code(view.dtype) for view in views]
    call.recorder.launch(
        kernel, blocks(out.numel), out=out, **params, constants=constants, shape=padded(merged.shape),
        strides=padded(*merged.strides), count=out.numel, rank=merged.rank, types=types,
    )  # fmt: skip


def blocks(items: int, per_block: int = ELEMENTS_PER_BLOCK) -> int:
    return -(-items // per_block)


def copy_into(call: Call, to: View, source: Operand) -> None:
    """Writes a tensor or a number to a view, broadcast and converted."""
    if not to.numel:
        return
    if not isinstance(source, View):
        _fill(call, to, source)
        return
    source = expand(source, to.shape)
    if source.dtype != to.dtype:
        emit(call, "copy", compute_type(source.dtype), to, source)
    elif to.contiguous and source.contiguous:
        call.recorder.copy(to, source)
    else:
        merged = call.walk(to.shape, to.strides, source.strides, reorder=True)
        call.recorder.launch(
            _MOVE[ITEM_BYTES[to.dtype]], blocks(to.numel), out=to, source=source, shape=padded(merged.shape),
            strides=padded(*merged.strides), count=to.numel, rank=merged.rank,
        )  # fmt: skip


def _fill(call: Call, to: View, value: Scalar) -> None:
    if to.contiguous and value == 0 and copysign(1.0, value) > 0:
        call.recorder.fill(to, 0)
    else:
        converted = isinstance(value, float) and not is_float(to.dtype)
        emit(call, "copy", "f64" if converted else compute_type(to.dtype), to, value)


def arange(call: Call, out: View, start: Scalar, step: Scalar) -> None:
    """``out[i] = start + i step`` over a vector, real numbers computed in f64."""
    if out.numel:
        compute = "f64" if is_float(out.dtype) or isinstance(start, float) or isinstance(step, float) else "i64"
        call.recorder.launch(
            _ARANGE[compute], blocks(out.numel), out=out, start=constant_bits(start, compute),
            step=constant_bits(step, compute), stride=out.strides[0], count=out.numel, type=call.code(out.dtype),
        )  # fmt: skip


# ---- temporaries ---------------------------------------------------------------------------------------------------
def dense(call: Call, view: View) -> View:
    """The view itself if it has no gaps, else a contiguous copy."""
    return view if view.contiguous else cast(call, view, view.dtype)


def cast(call: Call, view: View, dtype: str) -> View:
    """A contiguous copy of another type."""
    copy = call.recorder.scratch(view.shape, dtype)
    copy_into(call, copy, view)
    return copy


def temporary(call: Call, out: View) -> View:
    """Where a kernel that writes contiguously writes this output. Ended by ``settle``."""
    return out if out.contiguous else call.recorder.scratch(out.shape, out.dtype)


def settle(call: Call, out: View, written: View) -> None:
    if written is not out:
        copy_into(call, out, written)
