"""Every kernel test runs on each instruction-set level that this CPU has, and prints its seed."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from .harness import LEVELS

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is imported


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tests run beside each other; PyTorch's own threads only disturb."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def seed() -> int:
    """The seed of a random test, printed when it fails."""
    value = 20261130
    print(f"seed {value}")
    return value
