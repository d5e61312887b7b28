"""What the attacks share: a whole core in a folder, and the question whether anybody accepts it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import independent_reader
from heliograph.core.policy import Policy
from heliograph.core.verify import verify, verify_weights
from heliograph.errors import CoreError
from tiny_core import TinyCore, tiny_core

Verdict = Callable[[Path], CoreError]


@pytest.fixture(scope="session")
def parts() -> TinyCore:
    """A core with text and three weight slices."""
    return tiny_core(weight_bytes=3 << 20, text=True)


@pytest.fixture
def core(parts: TinyCore, tmp_path: Path) -> Path:
    """Its folder, which is accepted before a test attacks it: the twin of every refusal."""
    path = parts.write(tmp_path / "cores")
    with verify(path, Policy.only(parts.key.public_bytes)) as verified:
        verify_weights(verified)
    independent_reader.read(path, [parts.key.public_bytes])
    return path


@pytest.fixture
def refused(parts: TinyCore) -> Verdict:
    """Both readers must refuse a folder; the product's error."""

    def ask(path: Path) -> CoreError:
        with pytest.raises(independent_reader.Refused):
            independent_reader.read(path, [parts.key.public_bytes])
        with pytest.raises(CoreError) as error, verify(path, Policy.only(parts.key.public_bytes)) as verified:
            verify_weights(verified)
        return error.value

    return ask
