"""Builds the fake CUPTI, under the file name that the real one has."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
from pathlib import Path

from fake_cuda.build import FLAGS, ROOT, compiler, cuda_headers

SOURCE = Path(__file__).parent / "cupti.cpp"


def fake_cupti_library() -> Path:
    """The built library: build/fake_cupti/<digest of source, flags and compiler>/libcupti.so.13."""
    version = subprocess.run([*compiler(), "--version"], check=True, capture_output=True, text=True).stdout
    parts = [SOURCE.read_bytes(), " ".join(FLAGS).encode(), version.encode()]
    folder = ROOT / "build" / "fake_cupti" / hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libcupti.so.13"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs at once build it once
        if not library.exists():
            unfinished = folder / "unfinished.so"
            include = ["-isystem", str(cuda_headers())]
            subprocess.run([*compiler(), *FLAGS, *include, "-o", str(unfinished), str(SOURCE), "-ldl"], check=True)
            unfinished.rename(library)
    return library
