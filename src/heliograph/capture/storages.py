"""Which buffer each storage of the running model lies in.

Under a fake mode storages have identity but no memory. A storage gets its range of scratch when it is first written
and gives it back when the last tensor on it dies, which a weak reference on the storage tells. Views share storage,
so they cost nothing. A storage that was not made by this run belongs to nobody here, and is refused by the recorder.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch
from torch import Tensor, UntypedStorage
from torch.utils._mode_utils import no_dispatch

from heliograph.capture.buffers import BufferTable
from heliograph.ops.launch import View

DTYPES: dict[torch.dtype, str] = {
    torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.uint64: "u64",
    torch.uint32: "u32", torch.bool: "bool",
}  # fmt: skip
TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}


@dataclass(slots=True)
class _Entry:
    buffer: int | None = None  # None until first written
    scratch: bool = False  # the buffer's range goes back when the storage dies
    constant: Tensor | None = None  # the real values, while nothing has written to them
    weight: str = ""  # name of the parameter or buffer


class Storages:
    """The storages of one run of the model. ``close`` ends the run."""

    def __init__(self, buffers: BufferTable) -> None:
        self._buffers = buffers
        self._entries: dict[int, _Entry] = {}
        self._watches: dict[int, weakref.finalize[..., UntypedStorage]] = {}

    def knows(self, tensor: Tensor) -> bool:
        return _key(tensor) in self._entries

    def adopt(self, tensor: Tensor, buffer: int, *, weight: str = "") -> None:
        """A tensor whose memory is there for the whole run: a weight, an input, state."""
        self._enter(tensor, _Entry(buffer, weight=weight))

    def announce(self, tensor: Tensor, *, constant: Tensor | None = None) -> None:
        """A tensor that was made now and has no memory yet; with its values if they are known."""
        self._enter(tensor, _Entry(constant=constant))

    def constant(self, tensor: Tensor) -> Tensor | None:
        """The real values that a tensor views, if they are known and unchanged."""
        source = self._entries[_key(tensor)].constant
        if source is None or source.dtype != tensor.dtype:
            return None
        with no_dispatch():
            return source.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def known_values(self, tensor: Tensor) -> Tensor | None:
        """The real values of the whole storage, if they are known and unchanged."""
        return self._entries[_key(tensor)].constant

    def weight(self, tensor: Tensor) -> str:
        """Name of the parameter or buffer that the tensor views, or an empty string."""
        return self._entries[_key(tensor)].weight

    def placed(self, tensor: Tensor) -> bool:
        return self._entries[_key(tensor)].buffer is not None

    def place(self, tensor: Tensor, buffer: int, *, scratch: bool) -> None:
        """The tensor's storage lies in this buffer from now on. In scratch its values are no longer known."""
        entry = self._entries[_key(tensor)]
        entry.buffer, entry.scratch = buffer, scratch
        if scratch:
            entry.constant = None

    def view(self, tensor: Tensor) -> View:
        """A placed tensor as lowerings see it."""
        buffer = self._entries[_key(tensor)].buffer
        if buffer is None:
            raise KeyError("a storage that was not placed")
        address = self._buffers.address(buffer) + int(tensor.storage_offset()) * tensor.element_size()
        return View(address, tuple(tensor.shape), tuple(tensor.stride()), DTYPES[tensor.dtype], buffer)

    def close(self) -> None:
        """Forgets all storages. Tensors of this run that the model kept are unknown to every later run."""
        for watch in self._watches.values():
            watch.detach()
        self._watches.clear()
        self._entries.clear()

    def _enter(self, tensor: Tensor, entry: _Entry) -> None:
        key = _key(tensor)
        self._entries[key] = entry
        if key in self._watches:
            self._watches.pop(key).detach()
        watch = weakref.finalize(tensor.untyped_storage(), self._died, key)
        watch.atexit = False
        self._watches[key] = watch
        torch._C._set_throw_on_mutable_data_ptr(tensor)  # else a read of the pointer gives 0

    def _died(self, key: int) -> None:
        del self._watches[key]
        entry = self._entries.pop(key)
        if entry.scratch and entry.buffer is not None:
            self._buffers.give(entry.buffer)


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
