"""Whose memory a capture may point into: our pools, which stay where they are; everybody else's is refused by name.
Each refusal has a twin in which only that is put right."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu.runs import HERE, prepared, refused, replayed, script

pytestmark = pytest.mark.gpu
FAULTY = f"{HERE / 'faulty.py'}"
FAULTS = {
    "writes": ("a write to its parameter 'factor'",),
    "keeps": ("keeps another tensor with every run",),
    "draws": ("aten.rand.default", "faulty.py:"),
    "elsewhere": ("PyTorch's default pool",),
    "early": ("CUDA initialised by PyTorch already",),
    "private_pool": ("PyTorch's private graph pool",),
}


def test_storage_is_unmoved_and_readable_after_the_cache_is_emptied() -> None:
    assert script("pool_life.py", "unmoved") == {"unmoved": True, "readable": True, "replayed": True}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_refused_is_named(tmp_path: Path, name: str) -> None:
    said = refused(tmp_path, f"{FAULTY}:{name}", "wrong", exact=False)
    assert all(word in said for word in FAULTS[name]), said[-3000:]
    assert not list(tmp_path.glob("*/core.json"))


@pytest.mark.parametrize("name", FAULTS)
def test_its_twin_passes(tmp_path: Path, name: str) -> None:
    said = prepared(tmp_path, f"{FAULTY}:{name}", "right", exact=False, retain="executable", replays=3)
    assert replayed(said)["digests"] == said["digests"]


def test_both_captures_from_the_private_pool_are_refused_too(tmp_path: Path) -> None:
    """The exact census compares two captures, of which both took the same wrong pool."""
    assert "PyTorch's private graph pool" in refused(tmp_path, f"{FAULTY}:private_pool", "wrong")


def test_a_graph_from_the_private_pool_is_refused_by_name() -> None:
    told = script("pool_life.py", "private")
    assert told["private"].startswith("ForeignMemoryError"), told
    assert "PyTorch's private graph pool" in told["private"]
    assert told["ours"] == "not refused"


@pytest.mark.parametrize("variable", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_other_settings_of_the_allocator_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "expandable_segments:True")
    assert f"{variable}=expandable_segments:True" in refused(tmp_path, f"{FAULTY}:keeps", "right", exact=False)


def test_one_session_in_a_process() -> None:
    told = script("pool_life.py", "sessions")
    assert told["images"].startswith("CaptureError"), told
    assert told["session"].startswith("CaptureError"), told
    assert told["after"].startswith("CaptureError"), told
    assert "CUDA initialised by PyTorch already" in told["session"]
