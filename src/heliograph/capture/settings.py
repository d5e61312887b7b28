"""PyTorch's settings while a model is recorded, and the collector held off."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import RLock

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

ONE_CAPTURE = RLock()  # held by the thread that captures: settings and slots are the whole process's


@contextmanager
def fixed_settings() -> Iterator[None]:
    """PyTorch as every capture runs it: no gradients, plain attention, no fused paths that only run eagerly."""
    with ONE_CAPTURE, ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast("cpu", enabled=False))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(_library_paths_off())
        stack.enter_context(_told_once())
        stack.enter_context(_collector_off())
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


@contextmanager
def cuda_settings() -> Iterator[None]:
    """PyTorch as every CUDA capture runs it: no gradients, no compilation, and the kernels it would take anyway."""
    with ONE_CAPTURE, ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast("cuda", enabled=False))
        stack.enter_context(_collector_off())
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


@contextmanager
def _library_paths_off() -> Iterator[None]:
    """Without fused transformer layers and oneDNN's own recurrent layers, so that ops arrive one by one."""
    fused, library = torch.backends.mha.get_fastpath_enabled(), bool(torch.backends.mkldnn.enabled)
    torch.backends.mha.set_fastpath_enabled(False)
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        torch._C._set_mkldnn_enabled(library)


@contextmanager
def _told_once() -> Iterator[None]:
    """Without the log of what fake mode raises as well."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


@contextmanager
def _collector_off() -> Iterator[None]:
    """When a tensor dies decides which range the next one gets, so only reference counts may end lives."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
