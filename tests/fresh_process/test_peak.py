"""A load needs memory for the model once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from heliograph.core.sign import SigningKey
from study import Script, Study, make

MIB = 1 << 20


def test_the_weights_are_in_memory_once_at_the_peak(script: Script, tmp_path: Path, fresh_key: SigningKey) -> None:
    """64 MiB of weights: a second copy, in buffers or mapped files, would show."""
    core = make(tmp_path, Study(rows=(1,), depth=64 * 1024, cap=16 * MIB), fresh_key, name="large")
    result: dict[str, Any] = script("load_peak.py", core=core)
    assert result["weights"] == 64 * MIB
    assert result["weights"] < result["taken"] < result["weights"] + 24 * MIB
