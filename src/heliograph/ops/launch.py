"""What an op becomes on the host device: typed views, parameter blocks and launches. Torch-free.

A lowering is a function ``(recorder, inputs, outputs, arguments)`` that turns one call of an op into launches. It
sees storage only as :class:`View`, so the same lowering serves the capture and the kernel tests.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

ITEM_BYTES: Mapping[str, int] = {
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2,
    "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u64": 8, "u32": 4, "u8": 1, "bool": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class View:
    """A typed, strided view on device memory.

    ``address`` is that of element [0, ..., 0]; ``strides`` are in elements; ``storage`` names the allocation that
    the view belongs to, so that a pointer can be stored as (buffer, offset).
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    storage: int = 0

    @property
    def numel(self) -> int:
        n = 1
        for extent in self.shape:
            n *= extent
        return n

    @property
    def contiguous(self) -> bool:
        """Row-major without gaps; without elements whatever the strides are, as in PyTorch."""
        if self.numel == 0:
            return True
        expected = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent != 1 and stride != expected:
                return False
            expected *= extent
        return True


Scalar = int | float | bool
Value = View | int | float | Sequence[int]
_CODES: Mapping[str, str] = {"ptr": "Q", "u64": "Q", "i64": "q", "u32": "I", "i32": "i", "f32": "f", "f64": "d"}


@dataclass(frozen=True, slots=True)
class Pointer:
    """A pointer inside a parameter block: its byte offset and the view that it points at (None for null)."""

    at: int
    view: View


class ParamBlock:
    """The layout of a kernel's parameter struct, in C's natural alignment.

    Fields are ``(name, type)``, type one of ptr u64 i64 u32 i32 f32 f64, or ``(name, type, count)`` for an array.
    The driver states the size of each function's block and where its pointers are; ``tests/ops`` compares all.
    """

    def __init__(self, *fields: tuple[str, str] | tuple[str, str, int]) -> None:
        self.fields = fields
        at = 0
        align = 1
        self._places: list[tuple[str, str, int, int]] = []
        for field in fields:
            name, kind = field[0], field[1]
            count = field[2] if len(field) == 3 else 1
            size = struct.calcsize(_CODES[kind])
            align = max(align, size)
            at = (at + size - 1) // size * size
            self._places.append((name, kind, at, count))
            at += size * count
        self.size = (at + align - 1) // align * align
        self.pointer_offsets = tuple(a + 8 * i for _, kind, a, n in self._places if kind == "ptr" for i in range(n))

    def pack(self, values: Mapping[str, Value | None]) -> tuple[bytes, tuple[Pointer, ...]]:
        """The block's bytes (padding is zero) and its non-null pointers. Every field must be given, no other."""
        if values.keys() != {place[0] for place in self._places}:
            missing = {place[0] for place in self._places} ^ values.keys()
            raise TypeError(f"parameter block fields do not match: {sorted(missing)}")
        data = bytearray(self.size)
        pointers: list[Pointer] = []
        for name, kind, at, count in self._places:
            value = values[name]
            if kind == "ptr":
                if value is None:
                    continue
                if not isinstance(value, View):
                    raise TypeError(f"{name} is a pointer and takes a View, got {value!r}")
                struct.pack_into("<Q", data, at, value.address)
                pointers.append(Pointer(at, value))
            elif isinstance(value, Sequence):
                struct.pack_into(f"<{count}{_CODES[kind]}", data, at, *value, *([0] * (count - len(value))))
            else:
                struct.pack_into(f"<{_CODES[kind]}", data, at, value)
        return bytes(data), tuple(pointers)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A host kernel variant: the module (family) it lives in, its function name, its parameter block."""

    family: str
    name: str
    params: ParamBlock


class Recorder(Protocol):
    """What a lowering may do. Implemented by ``capture.record_host`` and by the kernel tests."""

    def launch(self, kernel: Kernel, blocks: int, **params: Value | None) -> None:
        """Appends one launch of ``blocks`` blocks."""

    def scratch(self, shape: Sequence[int], dtype: str) -> View:
        """A contiguous temporary that lives until the op is lowered."""

    def fill(self, view: View, byte: int) -> None:
        """Appends a memset of a contiguous view."""

    def copy(self, to: View, source: View) -> None:
        """Appends a memcpy between contiguous views of equal size."""


# A lowering gets the op's arguments as torch bound them, tensors replaced by Views (lists of tensors by lists of
# Views), and the op's outputs as Views already allocated.
Lowering = Callable[[Recorder, tuple[object, ...], Mapping[str, object], tuple[View, ...]], None]
LOWERINGS: dict[str, Lowering] = {}


def lowers(*names: str) -> Callable[[Lowering], Lowering]:
    """Registers a lowering under op names such as ``aten.add.Tensor`` or ``heliograph.linear.default``."""

    def register(lowering: Lowering) -> Lowering:
        for name in names:
            if name in LOWERINGS:
                raise ValueError(f"two lowerings for {name}")
            LOWERINGS[name] = lowering
        return lowering

    return register
