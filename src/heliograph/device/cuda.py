"""A CUDA device: how it is opened, and what it may do to code."""

from __future__ import annotations

import os
from typing import Final

from heliograph._native import CudaDevice

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
