"""Ops along one dimension: softmax, running sums, sorting.

Tolerances against PyTorch: softmax within RELATIVE of the row's largest value, log_softmax within RELATIVE of the row's
largest magnitude; sums as in ``reductions``; orders exact (stable, NaN greatest).
"""

from __future__ import annotations

from heliograph.ops.aten.call import Call, aten
from heliograph.ops.aten.element import compute_type, is_float
from heliograph.ops.aten.indexing import take_along
from heliograph.ops.aten.pointwise import blocks, cast, copy_into, padded
from heliograph.ops.aten.strided import MAX_RANK, drop, keep, narrow
from heliograph.ops.launch import Kernel, ParamBlock, View

RELATIVE = {"f32": 2.0**-20, "f16": 2.0**-10, "bf16": 2.0**-7}
ELEMENTS_PER_BLOCK = 8192

_ROWS = ParamBlock(
    ("out", "ptr"), ("source", "ptr"), ("shape", "i64", MAX_RANK), ("out_strides", "i64", MAX_RANK),
    ("in_strides", "i64", MAX_RANK), ("rows", "u64"), ("length", "u64"), ("out_step", "i64"), ("in_step", "i64"),
    ("rank", "u32"), ("out_type", "u32"), ("in_type", "u32"), ("rows_per_block", "u32"),
)  # fmt: skip
_SOFTMAX = Kernel("aten_rows", "softmax", _ROWS)
_LOG_SOFTMAX = Kernel("aten_rows", "log_softmax", _ROWS)
_CUMSUM = {compute: Kernel("aten_rows", f"cumsum_{compute}", _ROWS) for compute in ("f64", "i64")}
_SORT_BLOCK = ParamBlock(
    ("order", "ptr"), ("spare", "ptr"), ("keys", "ptr"), ("rows", "u64"), ("length", "u64"), ("descending", "u32")
)
_SORT = {compute: Kernel("aten_rows", f"sort_{compute}", _SORT_BLOCK) for compute in ("f32", "f64", "i64")}
KERNELS = (_SOFTMAX, _LOG_SOFTMAX, *_CUMSUM.values(), *_SORT.values())


def _along(call: Call, kernel: Kernel, out: View, source: View, dim: int) -> None:
    if not out.numel:
        return
    if not source.shape:
        out, source = (View(v.address, (1,), (1,), v.dtype, v.storage) for v in (out, source))
    axis = call.axis(dim, len(source.shape))
    others = drop(source, [axis])
    merged = call.walk(others.shape, drop(out, [axis]).strides, others.strides)
    length = source.shape[axis]
    rows_per_block = max(1, ELEMENTS_PER_BLOCK // length)
    call.recorder.launch(
        kernel, blocks(others.numel, rows_per_block), out=out, shape=padded(merged.shape),
        out_strides=padded(merged.strides[0]), in_strides=padded(merged.strides[1]), rows=others.numel, length=length,
        out_step=out.strides[axis], in_step=source.strides[axis], rank=merged.rank, out_type=call.code(out.dtype),
        in_type=call.code(source.dtype), rows_per_block=rows_per_block, source=source,
    )  # fmt: skip


@aten("_softmax.default")
def lower_softmax(call: Call, self: View, dim: int, half_to_float: bool) -> None:
    call.real(self.dtype, call.out.dtype)
    _along(call, _SOFTMAX, call.out, self, dim)


@aten("_log_softmax.default")
def lower_log_softmax(call: Call, self: View, dim: int, half_to_float: bool) -> None:
    call.real(self.dtype, call.out.dtype)
    _along(call, _LOG_SOFTMAX, call.out, self, dim)


@aten("cumsum.default", in_place=True)
def lower_cumsum(call: Call, self: View, dim: int, *, dtype: object = None) -> None:
    _along(call, _CUMSUM["f64" if is_float(call.out.dtype) else "i64"], call.out, self, dim)


# ---- sorting -------------------------------------------------------------------------------------------------------
def _last(view: View, axis: int) -> View:
    """The view with a dimension moved to the end."""
    return keep(view, [*(d for d in range(len(view.shape)) if d != axis), axis])


def _sorted(call: Call, self: View, dim: int, descending: bool, kept: int) -> None:
    """Values and positions of the first ``kept`` elements of each line in order."""
    values, positions = call.outs
    if not self.shape:
        copy_into(call, values, self)
        copy_into(call, positions, 0)
        return
    if not self.numel:
        return
    axis = call.axis(dim, len(self.shape))
    compute = compute_type(self.dtype)
    lines = _last(self, axis)
    keys = cast(call, lines, compute)
    order, spare = (call.recorder.scratch(lines.shape, "i64") for _ in range(2))
    length = lines.shape[-1]
    call.recorder.launch(
        _SORT[compute], self.numel // length, order=order, spare=spare, keys=keys, rows=self.numel // length,
        length=length, descending=int(descending),
    )  # fmt: skip
    first = narrow(order, len(order.shape) - 1, 0, kept)
    copy_into(call, _last(positions, axis), first)
    take_along(call, _last(values, axis), lines, first, len(lines.shape) - 1)


@aten("sort.default")
def lower_sort(call: Call, self: View, dim: int = -1, descending: bool = False) -> None:
    _sorted(call, self, dim, descending, self.shape[dim] if self.shape else 1)


@aten("sort.stable")
def lower_sort_stable(
    call: Call, self: View, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> None:
    _sorted(call, self, dim, descending, self.shape[dim] if self.shape else 1)


@aten("topk.default")
def lower_topk(call: Call, self: View, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> None:
    """Always sorted, and the first positions win among equals, which PyTorch leaves open."""
    _sorted(call, self, dim, largest, k)
