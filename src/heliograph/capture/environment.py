"""The fixed environment of a capture, and what of it goes into the record. Imports no torch.

Two captures of one model give the same bytes whatever surrounds them. What could still get in is the model's own code,
through an iteration over a set for example; a capture command therefore starts itself anew with these variables.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

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
    "CUDAHOSTCXX", "CUDA_VISIBLE_DEVICES", "CXX", "CXXFLAGS", "DISABLE_PTXAS_OPT", "MKL_NUM_THREADS",
    "NVCC_PREPEND_FLAGS", "OMP_NUM_THREADS", "PTXAS_OPTIONS", "PYTHONOPTIMIZE", "TRITON_CUDACRT_PATH",
    "TRITON_CUDART_PATH", "TRITON_LIBCUDA_PATH", "TRITON_LIBDEVICE_PATH", "TRITON_PTXAS_BLACKWELL_PATH",
    "TRITON_PTXAS_PATH",
)  # fmt: skip
TRITON_CACHE = "TRITON_CACHE_DIR"  # of each CUDA capture its own


def triton_overrides(names: Iterable[str]) -> list[str]:
    """Of these variables those that would change what Triton compiles; a capture goes without them."""
    known = {*FIXED, *RECORDED, TRITON_CACHE}
    return sorted(name for name in names if name.startswith("TRITON_") and name not in known)


def child_environment() -> dict[str, str]:
    """The environment for a process that capture starts."""
    dropped = triton_overrides(os.environ)
    return {**{name: value for name, value in os.environ.items() if name not in dropped}, **FIXED}


def serving_environment() -> dict[str, str]:
    """The environment for the process that a capture becomes: a server's hashes must not be predictable."""
    return {name: value for name, value in os.environ.items() if name not in FIXED}


def recorded_environment() -> dict[str, str]:
    """The listed variables that are set here, by name. Values that are paths are left to the caller to replace."""
    return {name: os.environ[name] for name in sorted({*FIXED, *RECORDED}) if name in os.environ}


@contextmanager
def private_triton_cache() -> Iterator[None]:
    """Inside, Triton of this process and of those it starts compiles into a folder that is empty at first and gone
    afterwards: one that stays would save compiling, but what somebody put there would get into a core."""
    before = os.environ.get(TRITON_CACHE)
    with tempfile.TemporaryDirectory(prefix="heliograph-triton-", ignore_cleanup_errors=True) as folder:
        os.environ[TRITON_CACHE] = folder
        try:
            yield
        finally:
            os.environ.pop(TRITON_CACHE, None)
            if before is not None:
                os.environ[TRITON_CACHE] = before


def start_in_fixed_environment() -> None:
    """Starts this process anew if a fixed variable has another value, since some are read when an interpreter starts,
    or if a variable is set that a capture goes without.

    For commands, before they import torch. The process keeps its id, arguments and open files.
    """
    if triton_overrides(os.environ) or any(os.environ.get(name) != value for name, value in FIXED.items()):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], child_environment())  # noqa: S606 - this program
