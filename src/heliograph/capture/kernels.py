"""The kernel images and functions that a recording's graphs use, as they go into a core."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelImage:
    data: bytes
    family: str
    origin: str  # where it came from: "libcublasLt.so.13", "heliograph host kernels x86-64-v3"
    globals: tuple[tuple[str, bytes], ...] = ()  # contents by symbol, sorted (CUDA)


@dataclass(frozen=True, slots=True)
class KernelFunction:
    name: str
    image: int  # index of its image
    param_bytes: int
    pointers: tuple[int, ...] = ()  # byte offsets (host)
    attributes: tuple[tuple[int, int], ...] = ()  # (id, value) of what was raised (CUDA)


@dataclass(frozen=True, slots=True)
class Kernels:
    """In the order of first use."""

    images: tuple[KernelImage, ...]
    functions: tuple[KernelFunction, ...]
