"""Pointwise ops: arithmetic, comparison, logic, selection, functions.

Tolerances against PyTorch: exact for integers, comparisons, logic, selection, rounding, and for add, sub, mul, div,
sqrt of f32; functions within RELATIVE of the larger of the result and 1; f16 and bf16 computed in f32 and rounded once.
Integer division by zero gives 0, where PyTorch raises.
"""

from __future__ import annotations

from heliograph.ops.aten.call import Call, aten
from heliograph.ops.aten.element import Operand, Scalar, compute_type, is_float, result_type, rounded, widens
from heliograph.ops.aten.pointwise import arange, cast, copy_into, emit
from heliograph.ops.aten.strided import unsqueeze
from heliograph.ops.launch import View

RELATIVE = {"f32": 2.0**-20, "f64": 2.0**-40, "f16": 2.0**-10, "bf16": 2.0**-7}

# ---- one operand ---------------------------------------------------------------------------------------------------
FUNCTIONS = (
    "exp", "log", "sin", "cos", "tanh", "erf", "sqrt", "rsqrt", "sigmoid", "silu", "expm1", "exp2", "log2", "log10",
    "log1p", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "reciprocal",
)  # fmt: skip
ROUNDINGS = ("floor", "ceil", "trunc")
SAME_TYPE = ("neg", "abs", "sign", "relu")


def _function(kernel: str) -> None:
    """Real results, also of integers."""

    @aten(f"{kernel}.default", in_place=True)
    def lower(call: Call, self: View) -> None:
        emit(call, kernel, compute_type(call.out.dtype), call.out, self)


def _rounding(kernel: str) -> None:
    @aten(f"{kernel}.default", in_place=True)
    def lower(call: Call, self: View) -> None:
        if is_float(self.dtype):
            emit(call, kernel, compute_type(self.dtype), call.out, self)
        else:
            copy_into(call, call.out, self)


def _same_type(kernel: str) -> None:
    @aten(f"{kernel}.default", in_place=True)
    def lower(call: Call, self: View) -> None:
        emit(call, kernel, compute_type(self.dtype), call.out, self)


for _name in FUNCTIONS:
    _function(_name)
for _name in ROUNDINGS:
    _rounding(_name)
for _name in SAME_TYPE:
    _same_type(_name)


@aten("round.default", "round.decimals", in_place=True)
def lower_round(call: Call, self: View, *, decimals: int = 0) -> None:
    call.require(decimals == 0, f"decimals {decimals}", "rounding to integers")
    if is_float(self.dtype):
        emit(call, "round", compute_type(self.dtype), call.out, self)
    else:
        copy_into(call, call.out, self)


@aten("gelu.default", in_place=True)
def lower_gelu(call: Call, self: View, *, approximate: str = "none") -> None:
    emit(call, "gelu_tanh" if approximate == "tanh" else "gelu", compute_type(self.dtype), call.out, self)


@aten("hardtanh.default", in_place=True)
def lower_hardtanh(call: Call, self: View, min_val: Scalar = -1, max_val: Scalar = 1) -> None:
    emit(call, "clamp", compute_type(self.dtype), call.out, self, min_val, max_val)


@aten("leaky_relu.default", in_place=True)
def lower_leaky_relu(call: Call, self: View, negative_slope: Scalar = 0.01) -> None:
    emit(call, "leaky", compute_type(self.dtype), call.out, self, negative_slope, 1)


@aten("elu.default", in_place=True)
def lower_elu(call: Call, self: View, alpha: Scalar = 1, scale: Scalar = 1, input_scale: Scalar = 1) -> None:
    call.require(input_scale == 1, f"input_scale {input_scale}", "input_scale 1")
    emit(call, "elu", compute_type(self.dtype), call.out, self, alpha * scale, scale)


@aten("bitwise_not.default", in_place=True)
def lower_bitwise_not(call: Call, self: View) -> None:
    emit(call, "logical_not" if self.dtype == "bool" else "bitwise_not", "i64", call.out, self)


@aten("logical_not.default", in_place=True)
def lower_logical_not(call: Call, self: View) -> None:
    emit(call, "logical_not", compute_type(self.dtype), call.out, self)


@aten("isnan.default")
def lower_isnan(call: Call, self: View) -> None:
    _if_float(call, "isnan", self)


@aten("isinf.default")
def lower_isinf(call: Call, self: View) -> None:
    _if_float(call, "isinf", self)


def _if_float(call: Call, kernel: str, self: View) -> None:
    if is_float(self.dtype):
        emit(call, kernel, compute_type(self.dtype), call.out, self)
    else:
        copy_into(call, call.out, False)


# ---- two operands --------------------------------------------------------------------------------------------------
def _emit_common(call: Call, kernel: str, *operands: Operand) -> None:
    """Computes in the type that the operands have in common; operands are first rounded to it."""
    common = result_type(*operands)
    held = [_held(call, operand, common) for operand in operands]
    emit(call, kernel, compute_type(common), call.out, *held)


def _held(call: Call, operand: Operand, common: str) -> Operand:
    if not isinstance(operand, View):
        return rounded(operand, common)
    return operand if widens(operand.dtype, common) else cast(call, operand, common)


def _binary(kernel: str, *overloads: str, in_place: bool = True) -> None:
    @aten(*overloads, in_place=in_place)
    def lower(call: Call, self: Operand, other: Operand) -> None:
        _emit_common(call, kernel, self, other)


for _name in ("eq", "ne", "lt", "le", "gt", "ge", "fmod", "remainder", "bitwise_and", "bitwise_or", "bitwise_xor"):
    _binary(_name, f"{_name}.Tensor", f"{_name}.Scalar")
for _name in ("remainder", "bitwise_and", "bitwise_or", "bitwise_xor"):
    _binary(_name, f"{_name}.Scalar_Tensor", in_place=False)
for _name in ("logical_and", "logical_or", "logical_xor", "atan2"):
    _binary(_name, f"{_name}.default")
for _name in ("minimum", "maximum"):
    _binary(_name, f"{_name}.default", in_place=False)
_binary("minimum", "clamp_max.default", "clamp_max.Tensor")
_binary("maximum", "clamp_min.default", "clamp_min.Tensor")
_binary("shift_left", "bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar")
_binary("shift_right", "bitwise_right_shift.Tensor", "bitwise_right_shift.Tensor_Scalar")


def _emit_arithmetic(call: Call, kernel: str, *operands: Operand) -> None:
    """Computes as ``_emit_common``, but numbers keep the precision that the kernel computes in."""
    emit(call, kernel, compute_type(result_type(*operands)), call.out, *operands)


@aten("mul.Tensor", "mul.Scalar", in_place=True)
def lower_mul(call: Call, self: View, other: Operand) -> None:
    _emit_arithmetic(call, "mul", self, other)


@aten("add.Tensor", "add.Scalar", in_place=True)
def lower_add(call: Call, self: View, other: Operand, alpha: Scalar = 1) -> None:
    _emit_scaled(call, "add", self, other, alpha)


@aten("sub.Tensor", "sub.Scalar", in_place=True)
def lower_sub(call: Call, self: View, other: Operand, alpha: Scalar = 1) -> None:
    _emit_scaled(call, "sub", self, other, alpha)


@aten("rsub.Tensor", "rsub.Scalar")
def lower_rsub(call: Call, self: View, other: Operand, alpha: Scalar = 1) -> None:
    _emit_arithmetic(call, "scale_shift", self, -alpha, other)


def _emit_scaled(call: Call, kernel: str, self: View, other: Operand, alpha: Scalar) -> None:
    if alpha == 1:
        _emit_arithmetic(call, kernel, self, other)
        return
    compute = compute_type(result_type(self, other))
    emit(call, "add_scaled", compute, call.out, self, other, alpha if kernel == "add" else -alpha)


@aten("div.Tensor", "div.Scalar", in_place=True)
def lower_div(call: Call, self: View, other: Operand) -> None:
    emit(call, "div", compute_type(call.out.dtype), call.out, self, other)


@aten("div.Tensor_mode", "div.Scalar_mode", in_place=True)
def lower_div_mode(call: Call, self: View, other: Operand, *, rounding_mode: str | None) -> None:
    if rounding_mode is None:
        lower_div(call, self, other)
    else:
        _emit_common(call, f"div_{rounding_mode}", self, other)


@aten("floor_divide.default", "floor_divide.Scalar")
def lower_floor_divide(call: Call, self: View, other: Operand) -> None:
    _emit_common(call, "div_floor", self, other)


@aten("pow.Tensor_Tensor", "pow.Scalar")
def lower_pow(call: Call, self: Operand, exponent: Operand) -> None:
    _emit_common(call, "pow", self, exponent)


@aten("pow_.Tensor", "pow_.Scalar")
def lower_pow_in_place(call: Call, self: View, exponent: Operand) -> None:
    into = Call(call.name, call.recorder, (self,), call.args)
    if isinstance(exponent, View):
        lower_pow(into, self, exponent)
    else:
        lower_pow_scalar(into, self, exponent)


@aten("pow.Tensor_Scalar")
def lower_pow_scalar(call: Call, self: View, exponent: Scalar) -> None:
    compute = compute_type(result_type(self, exponent))
    if exponent == 1:
        copy_into(call, call.out, self)
    elif exponent == 2:
        emit(call, "mul", compute, call.out, self, self)
    elif compute != "i64" and exponent in (0.5, -0.5, -1):
        emit(call, {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}[exponent], compute, call.out, self)
    else:
        emit(call, "pow", compute, call.out, self, exponent)


# ---- selection -----------------------------------------------------------------------------------------------------
@aten("where.self", "where.Scalar", "where.ScalarSelf", "where.ScalarOther")
def lower_where(call: Call, condition: View, self: Operand, other: Operand) -> None:
    emit(call, "where", compute_type(call.out.dtype), call.out, condition, self, other)


@aten("masked_fill.Scalar", "masked_fill.Tensor", in_place=True)
def lower_masked_fill(call: Call, self: View, mask: View, value: Operand) -> None:
    emit(call, "where", compute_type(call.out.dtype), call.out, mask, value, self)


@aten("clamp.default", "clamp.Tensor", in_place=True)
def lower_clamp(call: Call, self: View, min: Operand | None = None, max: Operand | None = None) -> None:
    if max is None and min is None:
        raise call.refusal("neither min nor max", "a bound")
    if max is None and min is not None:
        _emit_common(call, "maximum", self, min)
    elif min is None and max is not None:
        _emit_common(call, "minimum", self, max)
    elif min is not None and max is not None:
        _emit_common(call, "clamp", self, min, max)


@aten("triu.default", in_place=True)
def lower_triu(call: Call, self: View, diagonal: int = 0) -> None:
    _band(call, "triu", self, diagonal)


@aten("tril.default", in_place=True)
def lower_tril(call: Call, self: View, diagonal: int = 0) -> None:
    _band(call, "tril", self, diagonal)


def _band(call: Call, kernel: str, self: View, diagonal: int) -> None:
    """Keeps elements by comparing the column with the row, shifted by the diagonal."""
    rows = call.recorder.scratch((self.shape[-2],), "i64")
    columns = call.recorder.scratch((self.shape[-1],), "i64")
    arange(call, rows, diagonal, 1)
    arange(call, columns, 0, 1)
    emit(call, kernel, compute_type(self.dtype), call.out, self, columns, unsqueeze(rows, 1))
