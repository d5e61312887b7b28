"""How the tests for a GPU start processes: what one that fails or stays is said to have died of."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gpu import runs

FAILS = """
import sys
sys.exit("".join(["Traceback\\n", "  File x\\n", "heliograph.errors.CaptureError: reading: found 3\\n", "hint: go\\n"]))
"""
STAYS = """
import subprocess, sys, time
if sys.argv[1:]:
    time.sleep(1000)
child = subprocess.run([sys.executable, __file__, "again"], stderr=subprocess.PIPE, text=True)
sys.exit("the second one said " + child.stderr)
"""
DEAF = """
import signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGABRT])
time.sleep(1000)
"""


def written(folder: Path, text: str) -> list[str]:
    (folder / "script.py").write_text(text)
    return [sys.executable, str(folder / "script.py")]


def test_the_exception_comes_first(tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as failed:
        runs._last_line(written(tmp_path, FAILS), "", 30)
    first = str(failed.value).splitlines()[0]
    assert first == "script.py ended with 1: heliograph.errors.CaptureError: reading: found 3 hint: go"


def test_a_process_that_stays_is_stopped_and_says_where_those_it_started_were(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception) as failed:
        runs._run(written(tmp_path, STAYS), "", 2)
    assert "script.py had not ended after 2 s" in str(failed.value)
    assert "the second one said Fatal Python error: Aborted" in str(failed.value)
    assert 'script.py", line 4' in str(failed.value)


def test_one_that_does_not_listen_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "LAST_WORDS_SECONDS", 0.5)
    with pytest.raises(pytest.fail.Exception):
        runs._run(written(tmp_path, DEAF), "", 2)


def test_a_capture_finds_its_environment_fixed_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    made = runs.environment()
    assert made["PYTHONHASHSEED"] == "0"
    assert made["PYTHONPATH"].split(os.pathsep) == [str(runs.HERE.parent), "/elsewhere"]
    assert not [name for name in made if name.startswith("PYTEST")]
