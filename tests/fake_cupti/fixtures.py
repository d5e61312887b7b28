"""The fake CUPTI for a test: clean at the start, and nobody subscribed at the end."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from fake_cuda.control import FakeCuda

from .build import fake_cupti_library
from .control import FakeCupti


@pytest.fixture(scope="session")
def fake_cupti_session() -> FakeCupti:
    return FakeCupti(fake_cupti_library())


@pytest.fixture
def fake_cupti(fake_cupti_session: FakeCupti, fake_cuda: FakeCuda) -> Iterator[FakeCupti]:
    """CudaImages finds it because it is mapped."""
    fake_cupti_session.reset()
    yield fake_cupti_session
    gc.collect()
    assert not fake_cupti_session.subscribed()
