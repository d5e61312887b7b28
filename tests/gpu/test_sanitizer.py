"""The process that replays, under the memory checker: no kernel reads or writes where nothing is, and one that does is
reported."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpu.runs import HERE, environment, prepared, script

pytestmark = pytest.mark.gpu
EXAMPLE = HERE.parent.parent / "examples" / "decoder.py"
GRAPHS = 8  # of the catalogue: one function each
LIMIT_SECONDS = 150  # kernels run many times slower under it


def sanitizer() -> str:
    """The checker of the CUDA toolkit."""
    beside = shutil.which("nvcc")
    folders = [str(Path(beside).resolve().parent)] if beside else []
    found = shutil.which("compute-sanitizer", path=os.pathsep.join([os.environ.get("PATH", ""), *folders]))
    if found is None:
        pytest.fail("compute-sanitizer is missing: it comes with the CUDA toolkit (package cuda-sanitizer-13-0)")
    return found


def checked(log: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a script of this folder under the checker, which writes ``log``."""
    # Calls of the driver that fail are no accesses; whoever made them says what became of it.
    command = [sanitizer(), "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "9"]
    command += ["--log-file", str(log), sys.executable, str(HERE / script), *arguments]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_SECONDS, env=environment(), check=False
    )
    assert log.exists(), ended.stderr[-4000:]
    return ended


def test_two_layers_are_replayed_without_an_error(tmp_path: Path) -> None:
    said = prepared(tmp_path, f"{EXAMPLE}:make", "small", exact=False, retain="executable", replays=1)
    log = tmp_path / "memcheck.log"
    ended = checked(log, "replay.py", said["core"], str(tmp_path / "plan"))
    last = log.read_text().strip().splitlines()[-1]
    print(json.dumps({"memcheck": last, "replays": len(said["digests"])}))
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:] + log.read_text()[-4000:]
    assert last.endswith("ERROR SUMMARY: 0 errors")
    told = json.loads(ended.stdout.strip().splitlines()[-1])
    assert told["digests"] == said["digests"]


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_a_kernel_that_writes_where_nothing_is_is_reported(tmp_path: Path, where: str) -> None:
    """So that no errors mean something: a core whose kernels do so, and its twin, loaded and run in the same way."""
    built = script("catalogue.py", "build", str(GRAPHS), str(tmp_path), *([where] if where == "outside" else []))
    log = tmp_path / "memcheck.log"
    ended = checked(log, "catalogue.py", "load", built["core"], built["key"], str(time.time()))
    found = log.read_text()
    told = found[-4000:] + ended.stderr[-2000:]
    errors = [int(number) for number in re.findall(r"ERROR SUMMARY: (\d+) error", found)]
    print(json.dumps({"where": where, "errors": errors[:1], "returned": ended.returncode}))
    assert bool(errors and errors[0]) == (where == "outside"), told
    assert ("Invalid __global__ write" in found) == (where == "outside"), told
    assert (ended.returncode == 0) == (where == "inside"), told
