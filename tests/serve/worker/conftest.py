"""A tiny Llama's core for the whole session."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiny_models import capture_small, random_model, write_hf


@pytest.fixture(scope="session")
def tiny_core(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_hf(folder / "model", random_model("llama"))
    return capture_small(folder / "model", folder / "cores")
