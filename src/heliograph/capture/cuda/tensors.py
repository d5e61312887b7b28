"""Tensors over memory that we placed: PyTorch sees a buffer of a region as a CUDA tensor, and owns nothing of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from heliograph.capture.storages import TORCH_DTYPES
from heliograph.capture.weights import Weight, standing_for
from heliograph.ops.launch import ITEM_BYTES


@dataclass(frozen=True, slots=True)
class _Memory:
    """Bytes at an address, as PyTorch's CUDA array interface wants to see them."""

    address: int
    size: int

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {"shape": (self.size,), "typestr": "|u1", "data": (self.address, False), "strides": None, "version": 3}


def tensor_at(address: int, shape: Sequence[int], dtype: str, *, index: int) -> Tensor:
    """A contiguous tensor over memory of CUDA device ``index``, which must stay for as long as the tensor is used."""
    size = prod(shape) * ITEM_BYTES[dtype]
    device = torch.device("cuda", index)
    if size == 0:
        return torch.empty(tuple(shape), dtype=TORCH_DTYPES[dtype], device=device)
    flat: Tensor = torch.as_tensor(_Memory(address, size), device=device)
    return flat.view(TORCH_DTYPES[dtype]).view(tuple(shape))


def weight_tensor(weight: Weight, address: int, *, index: int) -> Tensor:
    """A weight's place on the device as what the model has it as: a parameter or a plain tensor, with its marks."""
    return standing_for(weight, tensor_at(address, weight.shape, weight.dtype, index=index))
