"""A CUDA device: how it is opened, and what it may do to code."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from heliograph._native import CudaDevice, Function

# The driver must run what a core carries and nothing else: it compiles no PTX and keeps no cache of what it compiled.
AS_IT_IS: Final = {"CUDA_DISABLE_PTX_JIT": "1", "CUDA_CACHE_DISABLE": "1"}


def open_cuda(index: int = 0, *, compiles: bool = True) -> CudaDevice:
    """Opens a device by its number among those that CUDA_VISIBLE_DEVICES leaves.

    compiles: False forbids the driver to compile, in this process and those that it starts: for loading cores. The
    driver reads that once, when it is first opened. A process in which someone else opened it before (a framework)
    has to be started with the variables of ``AS_IT_IS`` set. Cores hold machine code only, so nothing is lost there
    but this second lock.

    DriverError if there is no driver or no such device, OutOfMemoryError if it has no room for a context.
    """
    if not compiles:
        os.environ.update(AS_IT_IS)
    return CudaDevice(index)


def context_limits(device: CudaDevice, functions: Iterable[Function]) -> tuple[tuple[str, int], ...]:
    """What a core states as limits: those of the context, and a stack that holds the local memory of every function.

    Names ascend; values in bytes or counts. A load sets them before the first module, so that the driver takes local
    memory then and not when a function first runs.
    """
    limits = device.limits()
    limits["stack"] = max([limits.get("stack", 0), *(function.local_bytes for function in functions)])
    return tuple(sorted(limits.items()))
