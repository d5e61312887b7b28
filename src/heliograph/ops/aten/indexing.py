"""Ops that read or write at positions held by other tensors. All exact; sums at equal positions in order.

A position out of range, where PyTorch raises, reads as all-ones bits (NaN in floating types) and is not written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heliograph.ops.aten.call import Call, aten
from heliograph.ops.aten.element import COMPUTES, Operand, Scalar, compute_type
from heliograph.ops.aten.pointwise import blocks, copy_into, emit, padded
from heliograph.ops.aten.strided import MAX_RANK, broadcast_shape, expand, keep
from heliograph.ops.launch import ITEM_BYTES, Kernel, ParamBlock, Value, View

MAX_INDICES = 4  # native/host/kernels/aten_index.cpp: kIndices
POSITIONS_PER_BLOCK = 2048  # there: kPositionsPerBlock

_BLOCK = ParamBlock(
    ("table", "ptr"), ("values", "ptr"), *((f"index{i}", "ptr") for i in range(MAX_INDICES)),
    ("shape", "i64", MAX_RANK), ("table_strides", "i64", MAX_RANK), ("value_strides", "i64", MAX_RANK),
    ("index_strides", "i64", MAX_INDICES * MAX_RANK), ("extent", "i64", MAX_INDICES), ("stride", "i64", MAX_INDICES),
    ("count", "u64"), ("rank", "u32"), ("indices", "u32"), ("index_types", "u32", MAX_INDICES), ("table_type", "u32"),
    ("value_type", "u32"),
)  # fmt: skip
_TAKE = {size: Kernel("aten_index", f"take_{size}", _BLOCK) for size in (1, 2, 4, 8)}
_PUT = {size: Kernel("aten_index", f"put_{size}", _BLOCK) for size in (1, 2, 4, 8)}
_COMBINE: Mapping[str, Kernel] = {
    f"{how}_{compute}": Kernel("aten_index", f"put_{how}_{compute}", _BLOCK)
    for how in ("add", "mul", "amax", "amin")
    for compute in COMPUTES
}
KERNELS = (*_TAKE.values(), *_PUT.values(), *_COMBINE.values())


@dataclass(frozen=True, slots=True)
class Index:
    """Positions along one dimension of a table, over the shape that is walked."""

    positions: View  # i64 or i32, broadcast to the walk
    extent: int
    stride: int


def _launch(call: Call, kernel: Kernel, count: int, table: View, values: View, indices: Sequence[Index]) -> None:
    """``table`` and ``values`` have the shape of the walk; the table's indexed dimensions have stride 0 in it."""
    if not values.numel:
        return
    call.require(len(indices) <= MAX_INDICES, f"{len(indices)} index tensors", f"at most {MAX_INDICES}")
    for index in indices:
        dtype = index.positions.dtype
        call.require(dtype in ("i64", "i32"), f"indices of type {dtype}", "i64 or i32")
    positions = [index.positions for index in indices]
    merged = call.walk(values.shape, table.strides, values.strides, *(view.strides for view in positions))
    params: dict[str, Value | None] = {
        f"index{i}": positions[i] if i < len(positions) else None for i in range(MAX_INDICES)
    }
    call.recorder.launch(
        kernel, count, table=table, values=values, **params, shape=padded(merged.shape),
        table_strides=padded(merged.strides[0]), value_strides=padded(merged.strides[1]),
        index_strides=padded(*merged.strides[2:]), extent=[i.extent for i in indices],
        stride=[i.stride for i in indices], count=values.numel, rank=merged.rank, indices=len(indices),
        index_types=[call.code(view.dtype) for view in positions],
        table_type=call.code(table.dtype), value_type=call.code(values.dtype),
    )  # fmt: skip


def take(call: Call, out: View, table: View, indices: Sequence[Index]) -> None:
    """Reads the table at the positions into ``out``."""
    _launch(call, _TAKE[ITEM_BYTES[out.dtype]], blocks(out.numel, POSITIONS_PER_BLOCK), table, out, indices)


def put(call: Call, table: View, values: View, indices: Sequence[Index], how: str | None = None) -> None:
    """Writes values to the table at the positions, or combines them with what is there. One block: order matters."""
    if how is not None:
        kernel = _COMBINE[f"{how}_{compute_type(table.dtype)}"]
    elif values.dtype == table.dtype:
        kernel = _PUT[ITEM_BYTES[table.dtype]]
    else:
        raise call.refusal(f"values of type {values.dtype}", f"{table.dtype}, as the tensor written to")
    _launch(call, kernel, 1, table, values, indices)


def _without(view: View, shape: Sequence[int], axis: int) -> View:
    """A table over a walk whose dimension ``axis`` is indexed: stride 0 there."""
    strides = tuple(0 if d == axis else stride for d, stride in enumerate(view.strides))
    return View(view.address, tuple(shape), strides, view.dtype, view.storage)


def take_along(call: Call, out: View, source: View, positions: View, axis: int) -> None:
    """``out[i, j, k] = source[i, positions[i, j, k], k]`` for the middle axis, and so on."""
    index = Index(positions, source.shape[axis], source.strides[axis])
    take(call, out, _without(source, out.shape, axis), (index,))


# ---- reading -------------------------------------------------------------------------------------------------------
@aten("embedding.default")
def lower_embedding(
    call: Call,
    weight: View,
    indices: View,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> None:
    rank = len(indices.shape)
    table = View(weight.address, call.out.shape, (0,) * rank + weight.strides[1:], weight.dtype, weight.storage)
    positions = View(indices.address, call.out.shape, (*indices.strides, 0), indices.dtype, indices.storage)
    take(call, call.out, table, (Index(positions, weight.shape[0], weight.strides[0]),))


@aten("index_select.default")
def lower_index_select(call: Call, self: View, dim: int, index: View) -> None:
    if not self.shape:
        copy_into(call, call.out, self)
        return
    axis = call.axis(dim, len(self.shape))
    step = index.strides[0] if index.shape else 1
    strides = tuple(step if d == axis else 0 for d in range(len(self.shape)))
    positions = View(index.address, call.out.shape, strides, index.dtype, index.storage)
    take_along(call, call.out, self, positions, axis)


@aten("gather.default")
def lower_gather(call: Call, self: View, dim: int, index: View, *, sparse_grad: bool = False) -> None:
    if not self.shape:
        copy_into(call, call.out, self)
        return
    take_along(call, call.out, self, index, call.axis(dim, len(self.shape)))


@dataclass(frozen=True, slots=True)
class _Positions:
    """Advanced indexing laid out over its result: the table's walk and the indices."""

    table: View
    indices: tuple[Index, ...]


def _advanced(call: Call, self: View, indices: Sequence[View | None]) -> _Positions:
    """The result has the indices' common shape where they stand if they are neighbours, else in front."""
    given = [(d, index) for d, index in enumerate(indices) if index is not None]
    for _, index in given:
        call.require(index.dtype != "bool", "a mask as index", "positions (the result's shape would depend on values)")
    common = broadcast_shape(*(index.shape for _, index in given))
    dims = [d for d, _ in given]
    others = [d for d in range(len(self.shape)) if d not in dims]
    neighbours = dims == list(range(dims[0], dims[0] + len(dims)))
    front = [d for d in others if neighbours and d < dims[0]]
    back = others[len(front) :]
    before, behind = keep(self, front), keep(self, back)
    shape = before.shape + common + behind.shape
    table = View(self.address, shape, before.strides + (0,) * len(common) + behind.strides, self.dtype, self.storage)
    laid = []
    for d, index in given:
        wide = expand(index, common)
        strides = (0,) * len(front) + wide.strides + (0,) * len(back)
        positions = View(index.address, shape, strides, index.dtype, index.storage)
        laid.append(Index(positions, self.shape[d], self.strides[d]))
    return _Positions(table, tuple(laid))


@aten("index.Tensor", "_unsafe_index.Tensor")
def lower_index(call: Call, self: View, indices: Sequence[View | None]) -> None:
    at = _advanced(call, self, indices)
    take(call, call.out, at.table, at.indices)


# ---- writing -------------------------------------------------------------------------------------------------------
def _start_from(call: Call, self: View) -> None:
    """The output begins as a copy of the tensor written to, unless it is that tensor."""
    if (call.out.address, call.out.strides) != (self.address, self.strides):
        copy_into(call, call.out, self)


@aten("_unsafe_index_put.default")
@aten("index_put.default", in_place=True)
def lower_index_put(
    call: Call, self: View, indices: Sequence[View | None], values: View, accumulate: bool = False
) -> None:
    only = indices[0] if len(indices) == 1 else None
    if only is not None and only.dtype == "bool":
        call.require(values.numel == 1 and not accumulate, f"a mask and {values.numel} values", "one value")
        _put_masked(call, self, only, values)
        return
    _start_from(call, self)
    at = _advanced(call, call.out, indices)
    put(call, at.table, expand(values, at.table.shape), at.indices, "add" if accumulate else None)


def _put_masked(call: Call, self: View, mask: View, value: Operand) -> None:
    behind = len(self.shape) - len(mask.shape)
    wide = View(mask.address, self.shape, mask.strides + (0,) * behind, mask.dtype, mask.storage)
    if isinstance(value, View):
        value = View(value.address, (), (), value.dtype, value.storage)
    emit(call, "where", compute_type(self.dtype), call.out, wide, value, self)


def _scatter(call: Call, self: View, dim: int, index: View, source: View, how: str | None) -> None:
    """``out[i, index[i, j, k], k] = source[i, j, k]`` for the middle axis, over the shape of the index."""
    _start_from(call, self)
    if not self.shape:
        self = View(self.address, (1,), (1,), self.dtype, self.storage)
    out = call.out if call.out.shape else View(call.out.address, (1,), (1,), call.out.dtype, call.out.storage)
    axis = call.axis(dim, len(self.shape))
    shape = index.shape or (1,)
    positions = View(index.address, shape, index.strides or (1,), index.dtype, index.storage)
    values = View(source.address, shape, source.strides or (1,), source.dtype, source.storage)
    put(call, _without(out, shape, axis), values, (Index(positions, out.shape[axis], out.strides[axis]),), how)


@aten("scatter.src", in_place=True)
def lower_scatter(call: Call, self: View, dim: int, index: View, src: View) -> None:
    _scatter(call, self, dim, index, src, None)


@aten("scatter.value", in_place=True)
def lower_scatter_value(call: Call, self: View, dim: int, index: View, value: Scalar) -> None:
    number = call.recorder.scratch((), self.dtype)
    copy_into(call, number, value)
    _scatter(call, self, dim, index, expand(number, index.shape), None)


@aten("scatter_add.default", in_place=True)
def lower_scatter_add(call: Call, self: View, dim: int, index: View, src: View) -> None:
    _scatter(call, self, dim, index, src, "add")


@aten("scatter_reduce.two", in_place=True)
def lower_scatter_reduce(
    call: Call, self: View, dim: int, index: View, src: View, reduce: str, *, include_self: bool = True
) -> None:
    how = {"sum": "add", "prod": "mul", "amax": "amax", "amin": "amin"}.get(reduce)
    if how is None or not include_self:
        raise call.refusal(
            f"reduce {reduce!r}, include_self {include_self}", "sum, prod, amax or amin with include_self"
        )
    _scatter(call, self, dim, index, src, how)
