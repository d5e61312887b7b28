"""A model captured from PyTorch replays in a fresh process without torch with the bits that PyTorch gives it without a
graph, in the process that captured it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu.runs import prepared, replayed

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("exact", [True, False])
def test_small_model(tmp_path: Path, exact: bool) -> None:
    said = prepared(tmp_path, "mlp", retain="executable", replays=50, exact=exact)
    told = replayed(said)
    assert told["digests"] == said["digests"]
    assert len(set(said["digests"])) == len(said["digests"]) == said["eager"]["steps"]
    assert not told["torch"]
    assert not told["cupti"]
    assert told["after_ready"] == {"modules_loaded": 0, "bytes_mapped": 0}
