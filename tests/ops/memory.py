"""Memory whose end is the end of the world: buffers that stop at a page nobody may touch, and hold a canary before."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from heliograph.ops.launch import ITEM_BYTES, View

DTYPES = {
    torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "bool",
}  # fmt: skip
TORCH = {name: dtype for dtype, name in DTYPES.items()}
PAGE = mmap.PAGESIZE
CANARY = 0xA5
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_NO_RESERVE = 0x4000


class Guarded:
    """``size`` bytes that end at an inaccessible page. The bytes before them on their page are canaries."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._span = -(-max(size, 1) // PAGE) * PAGE + PAGE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        base = _libc.mmap(None, self._span, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        if base in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), f"mapping {self._span} bytes")
        self._base = int(base)
        self.address = self._base + self._span - PAGE - size
        if _libc.mprotect(self._base + self._span - PAGE, PAGE, 0) != 0:
            raise OSError(ctypes.get_errno(), "protecting the guard page")
        self._canaries = min(self.address - self._base, PAGE)
        ctypes.memset(self.address - self._canaries, CANARY, self._canaries)

    def intact(self) -> bool:
        before = ctypes.string_at(self.address - self._canaries, self._canaries)
        return before == bytes([CANARY]) * self._canaries

    def close(self) -> None:
        _libc.munmap(self._base, self._span)


class Arena:
    """The buffers of one call. ``close`` checks the canaries and unmaps."""

    def __init__(self) -> None:
        self._buffers: list[Guarded] = []

    def empty(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> View:
        """A view with exactly the memory that its strides reach, filled with garbage."""
        reach = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 0
        buffer = Guarded(reach * ITEM_BYTES[dtype])
        ctypes.memset(buffer.address, 0xFF, buffer.size)
        self._buffers.append(buffer)
        return View(buffer.address, shape, strides, dtype, len(self._buffers) - 1)

    def place(self, tensor: Tensor) -> View:
        """A copy of a tensor with its strides."""
        view = self.empty(tuple(tensor.shape), tuple(tensor.stride()), DTYPES[tensor.dtype])
        reach = self._buffers[view.storage].size // ITEM_BYTES[view.dtype]  # gaps too; rows may share memory
        flat = View(view.address, (reach,), (1,), view.dtype, view.storage)
        self.tensor(flat).copy_(tensor.as_strided((reach,), (1,)))
        return view

    def tensor(self, view: View) -> Tensor:
        """The view's memory as a tensor, alive as long as the arena."""
        buffer = self._buffers[view.storage]
        if buffer.size == 0:
            return torch.empty_strided(view.shape, view.strides, dtype=TORCH[view.dtype])
        raw = (ctypes.c_char * buffer.size).from_address(buffer.address)
        flat = torch.frombuffer(raw, dtype=TORCH[view.dtype])
        return flat.as_strided(view.shape, view.strides, (view.address - buffer.address) // ITEM_BYTES[view.dtype])

    def close(self) -> None:
        broken = [i for i, buffer in enumerate(self._buffers) if not buffer.intact()]
        for buffer in self._buffers:
            buffer.close()
        self._buffers.clear()
        if broken:
            raise AssertionError(f"a kernel wrote before buffers {broken}")


@contextmanager
def arena() -> Iterator[Arena]:
    memory = Arena()
    try:
        yield memory
    finally:
        memory.close()
