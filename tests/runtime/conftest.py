"""A published study core for the whole session, and its verified handle for a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from heliograph.core.policy import Policy
from heliograph.core.sign import SigningKey, scratch_key
from heliograph.core.verify import VerifiedCore, verify
from study import Study, make


@pytest.fixture(scope="session")
def key() -> SigningKey:
    """Signs the cores of this session; nothing else trusts it."""
    return scratch_key()


@pytest.fixture(scope="session")
def study_core(tmp_path_factory: pytest.TempPathFactory, key: SigningKey) -> Path:
    return make(tmp_path_factory.mktemp("cores"), Study(), key)


@pytest.fixture
def verified(study_core: Path, key: SigningKey) -> Iterator[VerifiedCore]:
    with verify(study_core, Policy.only(key.public_bytes)) as core:
        yield core
