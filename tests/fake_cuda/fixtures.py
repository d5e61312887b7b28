"""The fake CUDA driver for a test: built once, clean at the start, and nothing left in it at the end."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from rigs import RIGS, Rig

from .build import fake_cuda_library
from .control import FakeCuda


@pytest.fixture(scope="session")
def fake_cuda_session() -> FakeCuda:
    return FakeCuda(fake_cuda_library())


@pytest.fixture
def fake_cuda(fake_cuda_session: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """Opens CudaDevice through the fake. Afterwards no object may be alive in it and none may have been misused."""
    fake_cuda_session.reset()
    monkeypatch.setenv("HELIOGRAPH_LIBCUDA", str(fake_cuda_session.path))
    yield fake_cuda_session
    gc.collect()
    assert fake_cuda_session.live() == {}
    assert fake_cuda_session.misuse() == ""
    assert fake_cuda_session.destroyed_in_flight() == 0


@pytest.fixture
def host() -> Iterator[Rig]:
    rig = RIGS["host"]()
    yield rig
    rig.close()


@pytest.fixture
def cuda(fake_cuda: FakeCuda) -> Iterator[Rig]:
    """A device of the fake CUDA driver."""
    rig = RIGS["fake-cuda"]()
    yield rig
    rig.close()


@pytest.fixture
def gpu() -> Iterator[Rig]:
    rig = RIGS["gpu"]()
    yield rig
    rig.close()


@pytest.fixture(params=["host", "cuda", pytest.param("gpu", marks=pytest.mark.gpu)])
def rig(request: pytest.FixtureRequest) -> Rig:
    """Each test that asks for it runs on the host, through the fake CUDA driver, and (make test-gpu) on a GPU."""
    made: Rig = request.getfixturevalue(request.param)
    return made
