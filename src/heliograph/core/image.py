"""What a kernel image must be (M39). No sandbox: the signature is what an image is trusted by; this finds an image
that was built wrongly before it can surprise the process that loads it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from heliograph.core.manifest import Target
from heliograph.core.refusal import refusal

_DOING: Final = "checking a kernel image"
_HEADER: Final = struct.Struct("<4sBBBB8xHHIQQQIHHHHHH")
_PROGRAM: Final = struct.Struct("<IIQQQQQQ")
_DYNAMIC: Final = struct.Struct("<qQ")
_SHARED_OBJECT: Final = 3
_MACHINES: Final = {"x86-64": 62, "aarch64": 183}  # by the beginning of the target's name; "generic" takes both
_CUDA: Final = 190
_PT_DYNAMIC, _PT_INTERP, _PT_TLS, _PT_STACK = 2, 3, 7, 0x6474E551
_EXECUTE, _WRITE = 1, 2
# DT_NEEDED, DT_INIT, DT_FINI, DT_INIT_ARRAY, DT_FINI_ARRAY, DT_PREINIT_ARRAY
_FORBIDDEN: Final = {1: "a needed library", 12: "a constructor", 13: "a destructor", 25: "constructors",
                     26: "destructors", 32: "constructors"}  # fmt: skip


def check_image(image: bytes, family: str, target: Target) -> None:
    """FormatError (M39) unless ``image`` can be a module of ``target``."""
    doing = f"{_DOING}, {family}"
    if len(image) < _HEADER.size:
        raise refusal(doing, f"{len(image)} bytes", "an ELF file", "M39")
    magic, width, order, _, _, kind, machine, _, _, programs, _, _, _, entry, count, *_ = _HEADER.unpack_from(image)
    if (magic, width, order) != (b"\x7fELF", 2, 1):
        raise refusal(doing, "another file", "a 64-bit little-endian ELF file", "M39")
    if machine not in machines(target):
        raise refusal(doing, f"code for machine {machine}", f"code for {target.arch}", "M39")
    if target.device == "cuda":
        return
    if kind != _SHARED_OBJECT or entry != _PROGRAM.size or programs + count * entry > len(image) or count == 0:
        raise refusal(doing, f"ELF type {kind}, {count} segments", "a shared object", "M39")
    for number in range(count):
        segment, flags, offset, _, _, size, *_ = _PROGRAM.unpack_from(image, programs + number * entry)
        if segment in {_PT_INTERP, _PT_TLS}:
            raise refusal(doing, "an interpreter or thread-local storage", "neither", "M39")
        if flags & _EXECUTE and (flags & _WRITE or segment == _PT_STACK):
            raise refusal(doing, "memory that is writable and executable", "none", "M39")
        if segment == _PT_DYNAMIC:
            check_dynamic(doing, image, offset, size)


def check_dynamic(doing: str, image: bytes, offset: int, size: int) -> None:
    if offset + size > len(image) or size % _DYNAMIC.size:
        raise refusal(doing, "a dynamic section beyond the file", "one within it", "M39")
    for tag in dynamic_tags(image, offset, size):
        if tag in _FORBIDDEN:
            raise refusal(doing, _FORBIDDEN[tag], "none", "M39")


def dynamic_tags(image: bytes, offset: int, size: int) -> Iterator[int]:
    for at in range(offset, offset + size, _DYNAMIC.size):
        tag, _ = _DYNAMIC.unpack_from(image, at)
        if tag == 0:
            return
        yield tag


def machines(target: Target) -> set[int]:
    if target.device == "cuda":
        return {_CUDA}
    named = {machine for name, machine in _MACHINES.items() if target.arch.startswith(name)}
    return named or set(_MACHINES.values())
