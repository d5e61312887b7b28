"""What the capturing process computed, a process without torch computes bit by bit: in any order, many times over."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from shuffled import UNITS

from study import loads

HERE = Path(__file__).parent
TIMES = 50
BUCKETS = 6


def run(home: Path, python: Path | str, script: str, *arguments: str) -> dict[str, Any]:
    environment = {**os.environ, "HELIOGRAPH_HOME": str(home)}
    command = [python, HERE / script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280, env=environment)
    assert done.returncode == 0, done.stderr
    return loads(done.stdout)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def captured(home: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The core, and the results of the capturing process."""
    return run(home, sys.executable, "small_model.py", str(tmp_path_factory.mktemp("cores")), str(TIMES))


@pytest.mark.parametrize(("seed", "units"), [(2, UNITS), (3, 3 * UNITS)])
def test_fifty_replays_of_every_bucket_in_a_fresh_process_are_bit_equal(
    home: Path, captured: dict[str, Any], torch_free_python: Path, seed: int, units: int
) -> None:
    fresh = run(home, torch_free_python, "replay_shuffled.py", captured["core"], str(seed), str(TIMES), str(units))
    assert len(fresh["digests"]) == BUCKETS * TIMES == len(set(fresh["digests"].values()))
    assert fresh["digests"] == captured["digests"]
    assert fresh["passed"] == [True] * BUCKETS


def test_the_replaying_process_has_neither_torch_nor_numpy(home: Path, captured: dict[str, Any]) -> None:
    """In the environment that has both."""
    fresh = run(home, sys.executable, "replay_shuffled.py", captured["core"], "1", "1", str(UNITS))
    assert fresh["modules"] == []
    assert fresh["libraries"] == []
