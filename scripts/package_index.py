"""Files that scripts fetch from the Python package index, and the cache that keeps them.

pip does the fetching, so its own settings (index, proxy, certificates) apply. The cache is $HELIOGRAPH_CACHE, else
$XDG_CACHE_HOME/heliograph, else ~/.cache/heliograph.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

READ = 1 << 20


@dataclass(frozen=True, slots=True)
class Package:
    """One file of one release, as published."""

    requirement: str  # name==version
    file: str
    options: tuple[str, ...] = ()  # of `pip download`


def cache_folder() -> Path:
    """Where fetched files are kept."""
    stated = os.environ.get("HELIOGRAPH_CACHE")
    if stated:
        return Path(stated)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "heliograph"


def download(package: Package, cache: Path) -> Path:
    """The file's path in the cache, fetched if it is not there yet. Its content is the caller's to check."""
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / package.file
    if not target.is_file():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(cache)]
        run = subprocess.run([*command, *package.options, package.requirement], stdout=sys.stderr)
        if run.returncode or not target.is_file():
            sys.exit(
                f"{package.requirement} could not be fetched: check the network, or put {package.file} into {cache}"
            )
    return target


def digest(path: Path) -> str:
    """SHA-256 in hexadecimal."""
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(READ):
            hasher.update(part)
    return hasher.hexdigest()
