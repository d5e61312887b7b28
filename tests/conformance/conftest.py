"""The devices of the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .probe import DEVICES, Probe


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "excludes(device, reason): a conformance test that this device cannot run, and why"
    )


COVERS = {"host": ("host",), "cuda": ("fake-cuda", "gpu"), "fake-cuda": ("fake-cuda",)}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test that takes ``probe`` runs on every device, but for those that it excludes; on a GPU with -m gpu."""
    if "probe" not in metafunc.fixturenames:
        return
    marks = [mark for mark in metafunc.definition.iter_markers("excludes") if mark.kwargs["reason"]]
    excluded = {name for mark in marks for name in COVERS[mark.args[0]]}
    names = [name for name in DEVICES if name not in excluded]
    params = [pytest.param(name, marks=[pytest.mark.gpu] * (name == "gpu")) for name in names]
    metafunc.parametrize("probe", params, indirect=True)


@pytest.fixture
def probe(request: pytest.FixtureRequest) -> Iterator[Probe]:
    if request.param == "fake-cuda":
        request.getfixturevalue("fake_cuda")
    opened = DEVICES[request.param]()
    yield opened
    opened.close()
