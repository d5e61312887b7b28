"""A published study core and a tiny Llama's core for the whole session, and a verified handle for a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from heliograph.core.policy import Policy
from heliograph.core.sign import SigningKey, scratch_key
from heliograph.core.verify import VerifiedCore, verify
from study import Study, make
from tiny_models import capture_small, random_model, write_hf


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


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.nn.Module]:
    """A tiny Llama's core, and the model that it was captured from."""
    folder = tmp_path_factory.mktemp("tiny")
    reference = write_hf(folder / "model", random_model("llama"))
    return capture_small(folder / "model", folder / "cores"), reference
