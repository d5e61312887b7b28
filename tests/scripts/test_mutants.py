"""`make mutants` cannot hang: a run that does not end is stopped with all that it started."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
HANGS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1], "w").write(str(child.pid))
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))


def test_a_run_that_does_not_end_is_broken_and_leaves_no_process(tmp_path: Path) -> None:
    from mutants import Broken, bounded

    with pytest.raises(Broken):
        bounded([sys.executable, "-c", HANGS, str(tmp_path / "child")], dict(os.environ), 5)
    child = int((tmp_path / "child").read_text())
    end = time.monotonic() + 30
    while running(child):
        assert time.monotonic() < end, "the child of a stopped run runs on"
        time.sleep(0.05)


def running(pid: int) -> bool:
    """Neither gone nor waiting for whoever adopted it to ask for its status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_run_that_ends_gives_its_status_and_all_its_output() -> None:
    from mutants import bounded

    said = "import sys; print('out', flush=True); print('err', file=sys.stderr); sys.exit(3)"
    done = bounded([sys.executable, "-c", said], dict(os.environ), 60)
    assert (done.returncode, done.stdout.split()) == (3, ["out", "err"])
