"""Small kernel modules, compiled by the test that needs them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

KERNELS = Path(__file__).parents[2] / "native" / "host"
FREESTANDING = ("-nostdlib", "-ffreestanding", "-fno-exceptions", "-fno-asynchronous-unwind-tables",
                "-fvisibility=hidden",
                "-Wl,-z,defs", "-Wl,-z,noexecstack", "-Wl,--build-id=none", "-Wl,-s")  # fmt: skip

MODULE = """
#include "kernel_abi.h"
static void run(const void *params, uint32_t, uint32_t) {{ **static_cast<uint64_t *const *>(params) = {value}; }}
static const uint32_t at[] = {{{offsets}}};
static const hg_function functions[] = {{{functions}}};
extern "C" __attribute__((visibility("default"))) const hg_module heliograph_module = {{
    {abi}, sizeof functions / sizeof functions[0], "{family}", "{level}", functions}};
"""


def compile_module(
    folder: Path,
    *,
    value: int = 1,
    abi: int = 1,
    offsets: str = "0",
    functions: str = '{"set", run, 8, 1, at}',
    family: str = "tiny",
    level: str = "generic",
) -> bytes:
    """A module of one function ``set`` that writes ``value`` to its pointer, or what the arguments make of it."""
    text = MODULE.format(value=value, abi=abi, offsets=offsets, functions=functions, family=family, level=level)
    return compile_text(folder, text, FREESTANDING)


def compile_text(folder: Path, text: str, flags: tuple[str, ...]) -> bytes:
    source, output = folder / "module.cpp", folder / "module.so"
    source.write_text(text)
    compiler = os.environ.get("CXX", "g++")
    subprocess.run(
        [compiler, "-std=c++20", "-shared", "-fPIC", f"-I{KERNELS}", *flags, "-o", output, source], check=True
    )
    return output.read_bytes()
