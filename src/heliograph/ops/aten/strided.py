"""Shapes and strides: broadcasting, views, and the walk over several operands with the fewest dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from heliograph.ops.launch import ITEM_BYTES, View

MAX_RANK = 8  # native/host/kernels/strided.h: kMaxRank

Extents = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Walk:
    """One shape and the strides of each operand over it. At least one dimension, none of extent 1 beside another."""

    shape: Extents
    strides: tuple[Extents, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)


def count(shape: Sequence[int]) -> int:
    n = 1
    for extent in shape:
        n *= extent
    return n


def row_major(shape: Sequence[int]) -> Extents:
    """The strides of a contiguous tensor."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(1, extent)
    return tuple(reversed(strides))


def walk(shape: Sequence[int], operands: Sequence[Sequence[int]], *, reorder: bool = False) -> Walk:
    """Merges dimensions that every operand crosses in one step, and drops those of extent 1.

    With ``reorder`` dimensions go by falling stride of the first operand, for work that has no order.
    """
    dims = [d for d, extent in enumerate(shape) if extent != 1]
    if reorder:
        dims.sort(key=lambda d: -abs(operands[0][d]))
    extents: list[int] = []
    strides: list[list[int]] = [[] for _ in operands]
    for d in dims:
        steps = [operand[d] for operand in operands]
        if extents and all(s[-1] == step * shape[d] for s, step in zip(strides, steps, strict=True)):
            extents[-1] *= shape[d]
            for s, step in zip(strides, steps, strict=True):
                s[-1] = step
        else:
            extents.append(shape[d])
            for s, step in zip(strides, steps, strict=True):
                s.append(step)
    if not extents:
        return Walk((1,), tuple((1,) for _ in operands))
    return Walk(tuple(extents), tuple(tuple(s) for s in strides))


def broadcast_shape(*shapes: Sequence[int]) -> Extents:
    rank = max(len(shape) for shape in shapes)
    aligned = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(next((e for e in extents if e != 1), 1) for extents in zip(*aligned, strict=True))


# ---- views -------------------------------------------------------------------------------------------------------
def expand(view: View, shape: Sequence[int]) -> View:
    """The view broadcast to a shape: stride 0 along what it lacks."""
    missing = len(shape) - len(view.shape)
    strides = tuple(
        0 if d < missing or view.shape[d - missing] != extent else view.strides[d - missing]
        for d, extent in enumerate(shape)
    )
    return replace(view, shape=tuple(shape), strides=strides)


def narrow(view: View, dim: int, start: int, length: int, step: int = 1) -> View:
    """``length`` elements of a dimension from ``start`` on; a negative step goes down."""
    shape, strides = list(view.shape), list(view.strides)
    address = view.address + start * strides[dim] * ITEM_BYTES[view.dtype] if length else view.address
    shape[dim], strides[dim] = length, strides[dim] * step
    return replace(view, address=address, shape=tuple(shape), strides=tuple(strides))


def select(view: View, dim: int, index: int) -> View:
    """One element of a dimension, which is dropped."""
    one = narrow(view, dim, index, 1)
    return replace(
        one, shape=one.shape[:dim] + one.shape[dim + 1 :], strides=one.strides[:dim] + one.strides[dim + 1 :]
    )


def unsqueeze(view: View, dim: int) -> View:
    return replace(
        view, shape=(*view.shape[:dim], 1, *view.shape[dim:]), strides=(*view.strides[:dim], 0, *view.strides[dim:])
    )


def flatten(view: View, shape: Sequence[int]) -> View:
    """A contiguous view in another shape of as many elements."""
    return replace(view, shape=tuple(shape), strides=row_major(shape))


def drop(view: View, dims: Sequence[int]) -> View:
    """Without the given dimensions, at their first index."""
    kept = [d for d in range(len(view.shape)) if d not in dims]
    return replace(view, shape=tuple(view.shape[d] for d in kept), strides=tuple(view.strides[d] for d in kept))


def keep(view: View, dims: Sequence[int]) -> View:
    """Only the given dimensions, in their order."""
    return replace(view, shape=tuple(view.shape[d] for d in dims), strides=tuple(view.strides[d] for d in dims))
