"""The fixed environment of a capture, and what of it goes into the record. Imports no torch.

Two captures of one model give the same bytes whatever surrounds them. What could still get in is the model's own code,
through an iteration over a set for example; a capture command therefore starts itself anew with these variables.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

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


def serving_environment() -> dict[str, str]:
    """The environment for the process that a capture becomes: a server's hashes must not be predictable."""
    return {name: value for name, value in os.environ.items() if name not in FIXED}


def recorded_environment() -> dict[str, str]:
    """The listed variables that are set here, by name. Values that are paths are left to the caller to replace."""
    return {name: os.environ[name] for name in sorted({*FIXED, *RECORDED}) if name in os.environ}


def start_in_fixed_environment() -> None:
    """Starts this process anew if a fixed variable has another value: some are read when an interpreter starts.

    For commands, before they import torch. The process keeps its id, arguments and open files.
    """
    if any(os.environ.get(name) != value for name, value in FIXED.items()):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], child_environment())  # noqa: S606 - this program
