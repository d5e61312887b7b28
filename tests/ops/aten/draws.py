"""Random tensors for property tests: any rank, strides, broadcasts, types; empty ones and those of rank 0 included."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
REAL = (torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
EVERY = (*FLOATS, *INTEGERS, torch.bool)

# Extents around the sizes of lanes and runs, zero seldom.
EXTENTS = st.sampled_from((1, 2, 3, 5, 8, 15, 16, 17, 33, 0))
SHAPES = st.lists(EXTENTS, max_size=3).map(tuple)
SEEDS = st.integers(0, 2**31)


def values(shape: tuple[int, ...], dtype: torch.dtype, source: torch.Generator) -> Tensor:
    """Ordinary numbers with a few zeros and equal elements; floats of mixed magnitude."""
    if dtype == torch.bool:
        return torch.rand(shape, generator=source) < 0.5
    if not dtype.is_floating_point:
        low = 0 if dtype == torch.uint8 else -20
        return torch.randint(low, 21, shape, generator=source).to(dtype)
    tensor = torch.randn(shape, generator=source, dtype=torch.float64) * 3
    tensor[torch.rand(shape, generator=source) < 0.1] = 0.0
    whole = torch.rand(shape, generator=source) < 0.2
    return torch.where(whole, tensor.round(), tensor).to(dtype)


def strided(tensor: Tensor, source: torch.Generator) -> Tensor:
    """The same values with other strides: permuted, or with gaps."""
    rank = tensor.dim()
    order = torch.randperm(rank, generator=source).tolist()
    padding = torch.randint(0, 3, (rank,), generator=source).tolist()
    wide = torch.zeros([tensor.shape[d] + extra for d, extra in zip(order, padding, strict=True)], dtype=tensor.dtype)
    view = wide
    for i, d in enumerate(order):
        view = view.narrow(i, 0, tensor.shape[d])
    return view.permute([order.index(d) for d in range(rank)]).copy_(tensor)


def thinned(shape: tuple[int, ...], source: torch.Generator) -> tuple[int, ...]:
    """A shape that broadcasts to this one: some extents 1, some leading ones gone."""
    cut = int(torch.randint(0, len(shape) + 1, (), generator=source))
    return tuple(1 if torch.rand((), generator=source) < 0.4 else extent for extent in shape[cut:])


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
