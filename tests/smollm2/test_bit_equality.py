"""The main claim on the real model: what the capturing process computed, a process without PyTorch computes again,
bit for bit, in logits and in the whole state, 50 shuffled replays of every bucket, for any number of workers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
TIMES = 50
BUCKETS = 11


def run(python: Path | str, script: str, *arguments: object) -> dict[str, Any]:
    command = [str(python), str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.fixture(scope="module")
def replayed(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smollm2")
    result = run(sys.executable, "capture_and_replay.py", smollm2, folder, TIMES)
    assert result["executables"] == BUCKETS
    assert result["replays"] == TIMES * BUCKETS
    assert result["nan"] == [], "a NaN fails, also where both sides have it"
    assert list(result["outputs"].values()) == [TIMES] * BUCKETS, "other inputs give other outputs"
    return folder


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("workers", [2])
def test_fifty_shuffled_replays_of_every_bucket_are_bit_equal_in_a_process_without_torch(
    replayed: Path, torch_free_python: Path, workers: int
) -> None:
    result = run(torch_free_python, "replay_in_fresh_process.py", replayed, workers)
    assert result["replays"] == TIMES * BUCKETS
    assert result["different"] == []
    assert result["libraries"] == []
    assert result["modules"] == []
    assert result["loadable"] is False
