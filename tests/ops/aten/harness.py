"""Runs one ATen op on our kernels in guarded memory, and PyTorch's own op on the same values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map

import heliograph.ops.aten  # noqa: F401  fills the table of lowerings
from heliograph.ops.launch import LOWERINGS, View

from ..harness import LEVELS, KernelRecorder, Split, whole
from ..memory import DTYPES, Arena, arena

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Ran:
    """The tensors an op returned, then those it was given, as they were afterwards."""

    outs: tuple[Tensor, ...]
    tensors: tuple[Tensor, ...]

    @property
    def out(self) -> Tensor:
        return self.outs[0]


def tensors_in(value: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _plain(memory: Arena, placed: list[View], value: Any) -> Any:
    def leaf(item: object) -> object:
        if isinstance(item, Tensor):
            view = memory.empty(tuple(item.shape), tuple(item.stride()), DTYPES[item.dtype])
            flat(memory.tensor(view)).copy_(flat(item))
            placed.append(view)
            return view
        if isinstance(item, torch.dtype):
            return DTYPES[item]
        return str(item) if isinstance(item, (torch.device, torch.layout, torch.memory_format)) else item

    return tree_map(leaf, value)


def ours(
    op: OpOverload,
    *args: Any,
    level: str = LEVELS[0],
    split: Split = whole,
    returns: Sequence[Tensor] | None = None,
    **kwargs: Any,
) -> Ran:
    """The op by its lowering, its results shaped like ``returns``, by default like PyTorch's.

    An op that writes into its arguments returns no fresh tensor.
    """
    shapes = theirs(op, *args, **kwargs).outs if returns is None else returns
    with arena() as memory:
        placed: list[View] = []
        plain_args, plain_kwargs = _plain(memory, placed, args), _plain(memory, placed, kwargs)
        outs = tuple(memory.empty(tuple(t.shape), tuple(t.stride()), DTYPES[t.dtype]) for t in shapes)
        recorder = KernelRecorder(memory, level, split)
        LOWERINGS[str(op)](recorder, plain_args, plain_kwargs, outs)
        return Ran(
            tuple(memory.tensor(view).clone() for view in outs),
            tuple(memory.tensor(view).clone() for view in placed),
        )


def theirs(op: OpOverload, *args: Any, **kwargs: Any) -> Ran:
    """The op by PyTorch, on copies."""
    copied, named = tree_map(lambda item: copied_as_is(item) if isinstance(item, Tensor) else item, (args, kwargs))
    outs = tensors_in(op(*copied, **named))
    return Ran(() if op._schema.is_mutable else tuple(outs), tuple(tensors_in((copied, named))))


def flat(tensor: Tensor) -> Tensor:
    """The memory that a tensor reaches, gaps and shared elements included."""
    reach = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    return tensor.as_strided((reach,), (1,))


def copied_as_is(tensor: Tensor) -> Tensor:
    """A copy with the same strides."""
    return flat(tensor).clone().as_strided(tensor.shape, tensor.stride(), 0)


def all_equal(got: Ran, want: Ran) -> bool:
    """Equal values and types everywhere; NaN equals NaN."""
    return all(
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(a.nan_to_num(7.0, 8.0, 9.0), b.nan_to_num(7.0, 8.0, 9.0))
        if a.is_floating_point()
        else torch.equal(a, b)
        for a, b in zip((*got.outs, *got.tensors), (*want.outs, *want.tensors), strict=True)
    )


def within(got: Tensor, want: Tensor, bound: float | Tensor) -> bool:
    """Differences in f64 at most ``bound``; infinities equal, NaN where NaN."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return False
    a, b = got.double(), want.double()
    special = ~(a.isfinite() & b.isfinite())
    if not torch.equal(a[special].nan_to_num(1.5), b[special].nan_to_num(1.5)):
        return False
    limit = torch.as_tensor(bound, dtype=torch.float64).expand(a.shape)
    return bool(((a - b).abs() <= limit)[~special].all())


def same_bytes(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    def raw(tensor: Tensor) -> Tensor:
        return tensor.new_empty(tensor.numel()).copy_(tensor.reshape(-1)).view(torch.uint8)

    return all(x.dtype == y.dtype and x.shape == y.shape and raw(x).equal(raw(y)) for x, y in zip(a, b, strict=True))
