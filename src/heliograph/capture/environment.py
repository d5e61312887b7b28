"""The fixed environment of a capture, and what of it goes into the record.

Two captures of one model have to give the same bytes, whatever the hash seed, the folder, the time zone or the number
of threads. Inside this process that means fixed PyTorch settings and no collector that frees tensors at its own times;
for processes that capture starts it means the variables below.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

# Set for every process of a capture.
FIXED: Mapping[str, str] = {
    "PYTHONHASHSEED": "0",
    "TRITON_DISABLE_LINE_INFO": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
}
# Recorded when set, beside the fixed ones: they choose compilers, threads or devices. Nothing else is kept.
RECORDED = (
    "CUDAHOSTCXX", "CUDA_VISIBLE_DEVICES", "CXX", "CXXFLAGS", "MKL_NUM_THREADS", "NVCC_PREPEND_FLAGS",
    "OMP_NUM_THREADS", "PYTHONOPTIMIZE",
)  # fmt: skip


def child_environment() -> dict[str, str]:
    """The environment for a process that capture starts."""
    return {**os.environ, **FIXED}


def recorded_environment() -> dict[str, str]:
    """The listed variables that are set here, by name. Values that are paths are left to the caller to replace."""
    return {name: os.environ[name] for name in sorted({*FIXED, *RECORDED}) if name in os.environ}


@contextmanager
def fixed_settings() -> Iterator[None]:
    """PyTorch as every capture runs it: no gradients, plain attention, no fused paths that only run eagerly."""
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast("cpu", enabled=False))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(_library_paths_off())
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
def _collector_off() -> Iterator[None]:
    """When a tensor dies decides which range the next one gets, so only reference counts may end lives."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
