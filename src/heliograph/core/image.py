"""What a kernel image must be (M39). No sandbox: the signature is what an image is trusted by; this finds an image
that was built wrongly before it can surprise the process that loads it."""

from __future__ import annotations

from typing import Final

from heliograph import _native
from heliograph.core.manifest import Target
from heliograph.core.refusal import refusal

_HEADER_BYTES: Final = 64
_ELF: Final = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_MACHINES: Final = {"x86-64": 62, "aarch64": 183}  # by the beginning of the target's name; "generic" takes both
_CUDA: Final = 190


def check_image(image: bytes, family: str, target: Target) -> None:
    """FormatError (M39) unless ``image`` can be a module of ``target``: on the host what the device checks again before
    it loads it, on CUDA its header. Loads nothing."""
    unfit = _unfit_cubin(image) if target.device == "cuda" else _native.unfit_module(image, machines(target))
    if unfit:
        raise refusal(f"checking a kernel image, {family}", unfit, f"a kernel module of {target.arch}", "M39")


def _unfit_cubin(image: bytes) -> str:
    if len(image) < _HEADER_BYTES or not image.startswith(_ELF):
        return "a file that is no ELF object"
    return "" if int.from_bytes(image[18:20], "little") == _CUDA else "an object for another processor"


def machines(target: Target) -> list[int]:
    """ELF's numbers of the processors of a host target."""
    named = [machine for name, machine in _MACHINES.items() if target.arch.startswith(name)]
    return named or list(_MACHINES.values())
