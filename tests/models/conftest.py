"""The reference model's file, fetched once into the cache."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

FETCH = Path(__file__).parents[2] / "scripts" / "fetch_model.py"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct, Q4_1, as `scripts/fetch_model.py` provides it."""
    script = runpy.run_path(str(FETCH))
    path: Path = script["fetch"](script["cache_folder"]())
    return path
