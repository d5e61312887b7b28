"""The build says which compiler it uses and why, and refuses one that it cannot use in one sentence."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from heliograph import _native

ROOT = Path(__file__).parent.parent
COMPILER = shutil.which(os.environ.get("CXX", "g++")) or "g++"
CHOOSING = ("CXX", "CUDAHOSTCXX", "NVCC_PREPEND_FLAGS")


def configure(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    tools = Path(sys.executable).parent
    base = {name: value for name, value in os.environ.items() if name not in CHOOSING}
    command = ["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}",
               f"-DPython_EXECUTABLE={sys.executable}", "-DHELIOGRAPH_HOST_KERNELS=OFF"]  # fmt: skip
    path = f"{tools}:{base['PATH']}"
    return subprocess.run(
        command, env={**base, "PATH": path, **environment}, capture_output=True, text=True, timeout=120
    )


def wrapper(folder: Path, *arguments: str) -> str:
    """A compiler of its own path, with arguments that it always gets."""
    script = folder / "compiler"
    script.write_text(f'#!/bin/sh\nexec {COMPILER} {" ".join(arguments)} "$@"\n')
    script.chmod(0o755)
    return str(script)


@pytest.mark.parametrize(
    ("variable", "form"),
    [
        ("CXX", "{}"),
        ("CUDAHOSTCXX", "{}"),
        ("NVCC_PREPEND_FLAGS", "-O2 -ccbin {}"),
        ("NVCC_PREPEND_FLAGS", "-ccbin={}"),
    ],
)
def test_the_chosen_compiler_is_used_and_named(tmp_path: Path, variable: str, form: str) -> None:
    chosen = wrapper(tmp_path)
    done = configure(tmp_path / "build", **{variable: form.format(chosen)})
    assert done.returncode == 0, done.stderr
    assert re.search(rf"host compiler {chosen} \(\w+ [\d.]+\), from {variable}", done.stdout)


def test_cxx_comes_before_the_compiler_of_cuda_code(tmp_path: Path) -> None:
    done = configure(tmp_path / "build", CXX=wrapper(tmp_path), CUDAHOSTCXX="/not/there")
    assert "from CXX" in done.stdout
    assert "not/there" not in done.stdout


def test_a_compiler_that_is_too_old_is_refused_in_one_sentence(tmp_path: Path) -> None:
    old = wrapper(tmp_path, "-U__GNUC__", "-D__GNUC__=9", "-w")
    done = configure(tmp_path / "build", CXX=old)
    assert done.returncode != 0
    said = " ".join(done.stderr.split())
    assert re.search(r"Heliograph needs g\+\+ 12 or newer, or clang 16 or newer: found GNU 9[\d.]*; set CXX\.", said)


def needed(library: Path) -> set[str]:
    """The libraries that a library is loaded with, by its dynamic section."""
    said = subprocess.run(["readelf", "-dW", library], check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"\(NEEDED\).*\[(\S+)\]", said))


def test_the_extension_needs_no_library_of_torch_or_cuda() -> None:
    """What is opened later, on a machine that has it, is not named there."""
    assert any("torch" in name for name in needed(Path(torch.__file__).parent / "lib" / "libtorch_python.so"))
    named = needed(Path(_native.__file__))
    assert "libc.so.6" in named
    of_system = re.compile(r"(libstdc\+\+|libgcc_s|libc|libm|libdl|librt|libpthread|ld-linux-[\w-]+)\.so\.\d+")
    assert [name for name in named if not of_system.fullmatch(name)] == []
