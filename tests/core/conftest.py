"""What the tests of the core share: a small core, its folder, and a home without keys."""

from __future__ import annotations

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
