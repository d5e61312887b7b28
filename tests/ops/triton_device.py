"""Runs ops on their Triton kernels: on the CUDA device if there is one, else in Triton's interpreter on the CPU.

Which of both is decided once a process, by conftest.py, before any kernel is imported. On CUDA the tests are marked
gpu, so `make test` leaves them out there and `make test-gpu` runs them.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor
from triton.runtime import interpreter

from heliograph.ops import triton_ops  # noqa: F401
from heliograph.ops.triton_launch import run

from .harness import Result

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # conftest.py sets it where there is no CUDA device
DEVICE = "cpu" if INTERPRETED else "cuda"


def _counts_from_arrays() -> None:
    """Triton 3.6 turns an array of one element into an int, which numpy from 2.4 on refuses."""
    patch = interpreter._patch_lang_tensor

    def patched(tensor: type, scope: object) -> None:
        patch(tensor, scope)
        tensor.__index__ = lambda self: int(self.handle.data.reshape(()))

    interpreter._patch_lang_tensor = patched


_counts_from_arrays()


def call(name: str, *args: object) -> Result:
    """Calls an op of namespace heliograph on copies of its arguments; the result is on the CPU."""
    placed = tuple(_placed(value) if isinstance(value, Tensor) else value for value in args)
    made = run(name, *placed) if INTERPRETED else getattr(torch.ops.heliograph, name)(*placed)
    outs = () if made is None else (made,) if isinstance(made, Tensor) else tuple(made)
    after = tuple(value.cpu() if isinstance(value, Tensor) else value for value in placed)
    return Result(tuple(out.cpu() for out in outs), after, ())


def _placed(tensor: Tensor) -> Tensor:
    """A copy on the device with the same strides."""
    reach = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    memory = torch.empty(reach, dtype=tensor.dtype, device=DEVICE)
    memory.copy_(tensor.as_strided((reach,), (1,)))
    return memory.as_strided(tensor.shape, tensor.stride())
