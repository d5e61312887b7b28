"""A model whose ops, and whose own code, launch what a test wants: each call does what comes next in ``SUBMITTING``."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType

import torch
from torch import Tensor, nn

SUBMITTING: list[Callable[[], object]] = []


@torch.library.custom_op("heliograph_tests::submit", mutates_args=())
def submit(x: Tensor) -> Tensor:
    """Launches past the dispatcher, and calls an op of PyTorch's behind that."""
    SUBMITTING.pop(0)()
    return x.clone()


class Submitting(nn.Module):
    """Two calls of a custom op; ``before``, ``between`` and ``behind`` are the model's own launches."""

    def __init__(self, **outside: Callable[[], object]) -> None:
        super().__init__()
        self.outside = outside

    def forward(self, x: Tensor) -> Tensor:
        self.outside.get("before", int)()
        x = submit(x)
        self.outside.get("between", int)()
        x = submit(x)
        self.outside.get("behind", int)()
        return x


def line_of(function: FunctionType, behind: int) -> str:
    """As origins have it, the line so far behind a function's ``def``."""
    code = function.__code__
    return f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno + behind}"


LINES = tuple(line_of(Submitting.forward, behind) for behind in (2, 4))  # of the two calls
