"""Kernel modules that only tests need, compiled as the build compiles its own (optimisation aside)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

KERNEL_SOURCES = Path(__file__).parents[2] / "native" / "host" / "kernels"
_LEVEL_FLAGS = {
    "generic": [],
    "x86-64-v3": ["-march=x86-64-v3"],
    "x86-64-v4+vnni+bf16": ["-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16", "-mprefer-vector-width=512"],
}
_FLAGS = [
    "-std=c++20", "-O1", "-fPIC", "-ffreestanding", "-fno-exceptions", "-fno-rtti", "-fno-stack-protector",
    "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
    "-fno-tree-loop-distribute-patterns", "-fno-threadsafe-statics", "-shared", "-nostdlib", "-Wl,-z,defs",
]  # fmt: skip


def compiled(source: Path, level: str, folder: Path) -> Path:
    """The module of a source file; headers beside it come before those of the repository."""
    module = folder / f"{source.stem}-{level}.so"
    command = [
        os.environ.get("CXX", "g++"), *_FLAGS, *_LEVEL_FLAGS[level], f'-DHG_LEVEL="{level}"', f"-I{source.parent}",
        f"-I{KERNEL_SOURCES}", f"-I{KERNEL_SOURCES.parent}", "-o", str(module), str(source),
    ]  # fmt: skip
    subprocess.run(command, check=True)
    return module
