"""The process that replays, under the memory checker: no kernel reads or writes where nothing is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpu.runs import HERE, environment, prepared

pytestmark = pytest.mark.gpu
EXAMPLE = HERE.parent.parent / "examples" / "decoder.py"
LIMIT_SECONDS = 150  # kernels run many times slower under it


def sanitizer() -> str:
    """The checker of the CUDA toolkit."""
    beside = shutil.which("nvcc")
    folders = [str(Path(beside).resolve().parent)] if beside else []
    found = shutil.which("compute-sanitizer", path=os.pathsep.join([os.environ.get("PATH", ""), *folders]))
    if found is None:
        pytest.fail("compute-sanitizer is missing: it comes with the CUDA toolkit (package cuda-sanitizer-13-0)")
    return found


def test_two_layers_are_replayed_without_an_error(tmp_path: Path) -> None:
    tool = sanitizer()
    said = prepared(tmp_path, f"{EXAMPLE}:make", "small", exact=False, retain="executable", replays=1)
    log = tmp_path / "memcheck.log"
    # Calls of the driver that fail are no accesses; whoever made them says what became of it.
    command = [tool, "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "9", "--log-file", str(log)]
    command += [sys.executable, str(HERE / "replay.py"), said["core"], str(tmp_path / "plan")]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_SECONDS, env=environment(), check=False
    )
    assert log.exists(), ended.stderr[-4000:]
    last = log.read_text().strip().splitlines()[-1]
    print(json.dumps({"memcheck": last, "replays": len(said["digests"])}))
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:] + log.read_text()[-4000:]
    assert last.endswith("ERROR SUMMARY: 0 errors")
    told = json.loads(ended.stdout.strip().splitlines()[-1])
    assert told["digests"] == said["digests"]
