"""Builds the fake CUDA driver with the compiler that builds the extension ($CXX, else g++)."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FLAGS = ("-std=c++20", "-O0", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra")
FLAGS += ("-Wno-missing-field-initializers", "-Werror")


def cuda_headers() -> Path:
    """The folder of the CUDA headers that the extension is built with."""
    found = subprocess.run(
        [sys.executable, ROOT / "native" / "find_cuda_headers.py"], check=True, capture_output=True, text=True
    )
    return Path(found.stdout.strip())


def compiler() -> list[str]:
    return shlex.split(os.environ.get("CXX", "g++"))


def fake_cuda_library() -> Path:
    """The built library: build/fake_cuda/<digest of sources, flags and compiler>/libfake_cuda.so.

    A missing compiler or an error is an exception, never a skip.
    """
    version = subprocess.run([*compiler(), "--version"], check=True, capture_output=True, text=True).stdout
    parts = [path.read_bytes() for path in _sources()] + [" ".join(FLAGS).encode(), version.encode()]
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    folder = ROOT / "build" / "fake_cuda" / digest
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libfake_cuda.so"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs at once build it once
        if not library.exists():
            _build(folder, library)
    return library


def _sources() -> list[Path]:
    return sorted(path for path in HERE.iterdir() if path.suffix in {".cpp", ".h", ".inc"})


def _build(folder: Path, library: Path) -> None:
    headers = cuda_headers()
    _write_error_names(headers, folder / "errors.inc")
    everything = folder / "fake_cuda.cpp"  # one unit: the headers are read once
    everything.write_text("".join(f'#include "{path}"\n' for path in _sources() if path.suffix == ".cpp"))
    unfinished = folder / "unfinished.so"
    include = ["-isystem", str(headers), "-I", str(folder), "-I", str(HERE)]
    subprocess.run([*compiler(), *FLAGS, *include, "-o", str(unfinished), str(everything), "-lpthread"], check=True)
    unfinished.rename(library)


def _write_error_names(headers: Path, to: Path) -> None:
    """Every code of cuda.h, so that a test may let a call fail with any of them."""
    text = (headers / "cuda.h").read_text(encoding="utf-8", errors="replace")
    names = dict.fromkeys(re.findall(r"^\s+(CUDA_SUCCESS|CUDA_ERROR_\w+)\s*=\s*\d+", text, re.MULTILINE))
    to.write_text("".join(f'{{{name}, "{name}"}},\n' for name in names))
