"""Kernels of these tests: compiled by nvcc, loaded and launched through the driver, beside PyTorch's own."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

BUFFER_POINTER, BUFFER_SIZE, END = 1, 2, 0  # CU_LAUNCH_PARAM_*


@cache
def driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(result: int, call: str) -> None:
    if result:
        name = ctypes.c_char_p()
        driver().cuGetErrorName(result, ctypes.byref(name))
        raise RuntimeError(f"{call}: {name.value!r}")


@cache
def compiled(source: str, *flags: str) -> bytes:
    """A cubin for this GPU. The same source gives the same bytes."""
    major, minor = torch.cuda.get_device_capability()
    with TemporaryDirectory() as folder:
        Path(folder, "kernels.cu").write_text(source)
        command = ["nvcc", "-cubin", f"-arch=sm_{major}{minor}", *flags, "-o", "kernels.cubin", "kernels.cu"]
        subprocess.run(command, check=True, cwd=folder, capture_output=True)
        return Path(folder, "kernels.cubin").read_bytes()


class Module:
    """A loaded cubin."""

    def __init__(self, image: bytes) -> None:
        torch.cuda.current_stream()  # the context is current in this thread
        self._image = image
        self._module = ctypes.c_void_p()
        _check(driver().cuModuleLoadData(ctypes.byref(self._module), image), "cuModuleLoadData")

    def function(self, name: str) -> ctypes.c_void_p:
        found = ctypes.c_void_p()
        _check(driver().cuModuleGetFunction(ctypes.byref(found), self._module, name.encode()), "cuModuleGetFunction")
        return found

    def address(self, name: str) -> int:
        """Of a variable."""
        address, size = ctypes.c_uint64(), ctypes.c_size_t()
        call = driver().cuModuleGetGlobal_v2
        _check(call(ctypes.byref(address), ctypes.byref(size), self._module, name.encode()), "cuModuleGetGlobal")
        return address.value


def allow_shared(function: ctypes.c_void_p, size: int) -> None:
    _check(driver().cuFuncSetAttribute(function, 8, size), "cuFuncSetAttribute")


def launch(
    function: ctypes.c_void_p,
    params: Sequence[bytes],
    *,
    buffer: bytes | None = None,
    grid: int = 1,
    block: int = 1,
    shared: int = 0,
) -> None:
    """Launches on PyTorch's current stream: parameters one by one, or all of them in one ``buffer``."""
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    if buffer is None:
        kept = [ctypes.create_string_buffer(data, len(data)) for data in params]
        pointers = (ctypes.c_void_p * max(1, len(kept)))(*(ctypes.addressof(each) for each in kept))
        arguments, extra = ctypes.cast(pointers, ctypes.c_void_p), None
    else:
        data, size = ctypes.create_string_buffer(buffer, len(buffer)), ctypes.c_size_t(len(buffer))
        words = (ctypes.c_void_p * 5)(BUFFER_POINTER, ctypes.addressof(data), BUFFER_SIZE, ctypes.addressof(size), END)
        arguments, extra = None, ctypes.cast(words, ctypes.c_void_p)
    _check(
        driver().cuLaunchKernel(function, grid, 1, 1, block, 1, 1, shared, stream, arguments, extra), "cuLaunchKernel"
    )
