"""Reductions over any dimensions, and positions of extremes.

Tolerances against PyTorch: exact for integers, extremes, any, all; real sums within RELATIVE of the sum of magnitudes.
"""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.ops.aten.call import Call, aten
from heliograph.ops.aten.element import Scalar, compute_type, is_float
from heliograph.ops.aten.indexing import take_along
from heliograph.ops.aten.pointwise import blocks, copy_into, emit, padded, settle, temporary
from heliograph.ops.aten.strided import MAX_RANK, count, keep, unsqueeze
from heliograph.ops.launch import Kernel, ParamBlock, View

RELATIVE = {"f32": 2.0**-18, "f64": 2.0**-40, "f16": 2.0**-9, "bf16": 2.0**-6}
ELEMENTS_PER_BLOCK = 16384  # a block takes whole rows until it has about so many

_BLOCK = ParamBlock(
    ("out", "ptr"), ("second", "ptr"), ("source", "ptr"), ("kept_shape", "i64", MAX_RANK),
    ("kept_strides", "i64", MAX_RANK), ("reduced_shape", "i64", MAX_RANK), ("reduced_strides", "i64", MAX_RANK),
    ("kept", "u64"), ("reduced", "u64"), ("divisor", "f64"), ("kept_rank", "u32"), ("reduced_rank", "u32"),
    ("out_type", "u32"), ("second_type", "u32"), ("in_type", "u32"), ("rows_per_block", "u32"),
)  # fmt: skip
_KERNELS = {
    f"{name}_{compute}": Kernel("aten_reduce", f"{name}_{compute}", _BLOCK)
    for name in ("sum", "prod", "amax", "amin", "any", "all", "argmax", "argmin", "mean", "var")
    for compute in (("f32", "f64") if name in ("mean", "var") else ("f32", "f64", "i64"))
}
KERNELS = tuple(_KERNELS.values())

Dims = Sequence[int] | int | None


def reduce(
    call: Call,
    name: str,
    compute: str,
    out: View,
    source: View,
    dim: Dims = None,
    *,
    divisor: float = 1.0,
    second: View | None = None,
) -> None:
    """Folds the given dimensions (all by default); the outputs have one element for each index of the others."""
    kernel = _KERNELS.get(f"{name}_{compute}")
    if kernel is None:
        raise call.refusal(f"{name} of type {compute}", "a type that the op has a kernel for")
    dims = axes(call, source, dim)
    kept = keep(source, [d for d in range(len(source.shape)) if d not in dims])
    folded = keep(source, dims)
    outer, inner = call.walk(kept.shape, kept.strides), call.walk(folded.shape, folded.strides)
    rows_per_block = max(1, ELEMENTS_PER_BLOCK // max(1, folded.numel))
    written, beside = temporary(call, out), None if second is None else temporary(call, second)
    call.recorder.launch(
        kernel, blocks(kept.numel, rows_per_block), out=written, second=beside, kept_shape=padded(outer.shape),
        kept_strides=padded(*outer.strides), reduced_shape=padded(inner.shape), reduced_strides=padded(*inner.strides),
        kept=kept.numel, reduced=folded.numel, divisor=divisor, kept_rank=outer.rank, reduced_rank=inner.rank,
        out_type=call.code(out.dtype), second_type=call.optional_code(second),
        in_type=call.code(source.dtype), rows_per_block=rows_per_block, source=source,
    )  # fmt: skip
    settle(call, out, written)
    if second is not None and beside is not None:
        settle(call, second, beside)


def axes(call: Call, source: View, dim: Dims) -> list[int]:
    """The dimensions that a ``dim`` argument means, ascending."""
    rank = len(source.shape)
    if dim is None or dim == [] or dim == ():
        return list(range(rank))
    chosen = {call.axis(d, rank) for d in ([dim] if isinstance(dim, int) else dim)}
    return sorted(chosen) if rank else []


@aten("sum.dim_IntList", "sum.default")
def lower_sum(call: Call, self: View, dim: Dims = None, keepdim: bool = False, *, dtype: object = None) -> None:
    reduce(call, "sum", compute_type(call.out.dtype), call.out, self, dim)


@aten("prod.default")
def lower_prod(call: Call, self: View, *, dtype: object = None) -> None:
    reduce(call, "prod", compute_type(call.out.dtype), call.out, self)


@aten("prod.dim_int")
def lower_prod_dim(call: Call, self: View, dim: int, keepdim: bool = False, *, dtype: object = None) -> None:
    reduce(call, "prod", compute_type(call.out.dtype), call.out, self, dim)


@aten("mean.dim", "mean.default")
def lower_mean(call: Call, self: View, dim: Dims = None, keepdim: bool = False, *, dtype: object = None) -> None:
    n = count([self.shape[d] for d in axes(call, self, dim)])
    reduce(call, "mean", compute_type(call.out.dtype), call.out, self, dim, divisor=float(n))


def _extreme(kernel: str, *overloads: str) -> None:
    @aten(*overloads)
    def lower(call: Call, self: View, dim: Dims = None, keepdim: bool = False) -> None:
        reduce(call, kernel, compute_type(self.dtype), call.out, self, dim)


_extreme("amax", "amax.default", "max.default")
_extreme("amin", "amin.default", "min.default")
for _name in ("any", "all"):
    _extreme(_name, f"{_name}.default", f"{_name}.dim", f"{_name}.dims")
for _name in ("argmax", "argmin"):
    _extreme(_name, f"{_name}.default")


@aten("max.dim")
def lower_max_dim(call: Call, self: View, dim: int, keepdim: bool = False) -> None:
    _extreme_at(call, "argmax", self, dim, keepdim)


@aten("min.dim")
def lower_min_dim(call: Call, self: View, dim: int, keepdim: bool = False) -> None:
    _extreme_at(call, "argmin", self, dim, keepdim)


def _extreme_at(call: Call, kernel: str, self: View, dim: int, keepdim: bool) -> None:
    """Values and positions along a dimension: the positions, then what lies there."""
    values, positions = call.outs
    if not self.shape:
        copy_into(call, values, self)
        copy_into(call, positions, 0)
        return
    axis = call.axis(dim, len(self.shape))
    reduce(call, kernel, compute_type(self.dtype), positions, self, axis)
    lifted = [view if keepdim else unsqueeze(view, axis) for view in call.outs]
    take_along(call, lifted[0], self, lifted[1], axis)


# ---- variance, norm ------------------------------------------------------------------------------------------------
@aten("var.correction")
def lower_var(
    call: Call, self: View, dim: Dims = None, *, correction: Scalar | None = 1, keepdim: bool = False
) -> None:
    variance(call, call.out, None, self, dim, 1 if correction is None else correction)


@aten("var_mean.correction")
def lower_var_mean(
    call: Call, self: View, dim: Dims = None, *, correction: Scalar | None = 1, keepdim: bool = False
) -> None:
    variance(call, call.outs[0], call.outs[1], self, dim, 1 if correction is None else correction)


def variance(call: Call, out: View, mean: View | None, self: View, dim: Dims, correction: Scalar) -> None:
    n = count([self.shape[d] for d in axes(call, self, dim)])
    reduce(call, "var", compute_type(self.dtype), out, self, dim, divisor=max(0.0, n - correction), second=mean)


@aten("linalg_vector_norm.default")
def lower_vector_norm(
    call: Call, self: View, ord: Scalar = 2, dim: Dims = None, keepdim: bool = False, *, dtype: object = None
) -> None:
    """Orders 1, 2 and infinity, the squares and their sum in f32 (f64 for f64)."""
    compute = compute_type(self.dtype)
    call.require(is_float(self.dtype) and ord in (1, 2, float("inf")), f"order {ord}", "order 1, 2 or infinity")
    terms, total = (call.recorder.scratch(shape, compute) for shape in (self.shape, call.out.shape))
    if ord == 2:
        emit(call, "mul", compute, terms, self, self)
        reduce(call, "sum", compute, total, terms, dim)
        emit(call, "sqrt", compute, call.out, total)
    else:
        emit(call, "abs", compute, terms, self)
        reduce(call, "sum" if ord == 1 else "amax", compute, call.out, terms, dim)
