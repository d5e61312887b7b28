"""What the tests of the core share: a small core, its folder, and a home without keys."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from heliograph.core.policy import Policy
from tiny_core import TinyCore, tiny_core


@pytest.fixture(scope="session")
def tiny() -> TinyCore:
    """Its parts; tests replace, they do not assign."""
    return tiny_core(weight_bytes=64 << 10)


@pytest.fixture(scope="session")
def policy(tiny: TinyCore) -> Policy:
    """Trusts the key that signs ``tiny``."""
    return Policy.only(tiny.key.public_bytes)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh home folder for keys and trust."""
    folder = tmp_path / "home"
    monkeypatch.setenv("HELIOGRAPH_HOME", str(folder))
    return folder


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[str, Path], None]]:
    """Mounts an empty tmpfs with options (``size=1m``) on a folder, until the test ends."""
    mounted: list[Path] = []

    def do(options: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
        mounted.append(folder)

    yield do
    for folder in reversed(mounted):
        subprocess.run(["umount", folder], check=True)


@pytest.fixture
def another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Makes this process somebody else's until the test ends, in a folder that everybody may write to."""
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o777)
    yield lambda: os.seteuid(65534)
    os.seteuid(0)
