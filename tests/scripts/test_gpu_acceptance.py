"""What `make test-gpu` does with tests that pass, fail, hang, end their process, or find no time."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_acceptance.py"
HEAD = "import os, subprocess, time, pytest\npytestmark = pytest.mark.gpu\n"
FILES = {
    "tests/gpu/test_good.py": """
def test_one(): pass
@pytest.mark.parametrize("x", ["a b", "c"])
def test_two(x): print("figure", x)
""",
    "tests/gpu/test_bad.py": """
@pytest.fixture(scope="module")
def shared(): return []
def test_before(shared): pass
def test_wrong(shared): assert 1 == 2, "not equal"
@pytest.fixture
def untidy():
    yield
    raise ValueError("left open")
def test_untidy(untidy): pass
def test_dies(shared): os._exit(7)
def test_after(shared): pass
""",
    "tests/gpu/test_slow.py": """
@pytest.fixture(scope="module")
def shared(): return []
def test_hangs(shared):
    with subprocess.Popen(["sleep", "1000"], process_group=0) as process:
        open("out/left", "w").write(str(process.pid))
def test_after(shared): pass
""",
    "tests/gpu/test_alone_end.py": """
def test_last(): time.sleep(LAST)
def test_never(): pass
@pytest.mark.skipif(True, reason="no such GPU")
def test_skipped(): pass
""",
    "tests/conformance/test_poison.py": """
LEFT = []
def test_leaves(): LEFT.append(1); assert False, "addresses taken"
def test_finds(): assert not LEFT
""",
    "tests/device/test_broken.py": "\nimport nothing_of_that_name\n",
    "tests/device/test_plain.py": "\npytestmark = []\ndef test_needs_no_gpu(): assert False\n",
}


def written(root: Path, last: float = 0, only: tuple[str, ...] = tuple(FILES)) -> None:
    (root / "pytest.ini").write_text("[pytest]\nmarkers = gpu: as here\n")
    for folder in ("gpu", "device", "conformance", "capture"):
        (root / "tests" / folder).mkdir(parents=True)
    for name in only:
        (root / name).write_text(HEAD + FILES[name].replace("LAST", str(last)))


def ran(root: Path, *more: str) -> tuple[int, list[str], dict[str, dict[str, Any]]]:
    """Exit status, lines printed, and the last line of each name."""
    command = [sys.executable, str(SCRIPT), "--root", str(root), "--out", str(root / "out"), "--jobs", "2", *more]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert not ended.stderr, ended.stderr
    lines = [json.loads(line) for line in (root / "out" / "results.jsonl").read_text().splitlines()]
    return ended.returncode, ended.stdout.splitlines(), {line["name"].partition("tests/")[2]: line for line in lines}


def test_every_test_has_an_outcome_whatever_became_of_its_process(tmp_path: Path) -> None:
    written(tmp_path)
    code, lines, last = ran(tmp_path, "--test-seconds", "6", "--id", "first")
    assert code == 1
    assert {name: line["outcome"] for name, line in last.items()} == {
        "gpu/test_good.py::test_one": "passed",
        "gpu/test_good.py::test_two[a b]": "passed",
        "gpu/test_good.py::test_two[c]": "passed",
        "gpu/test_bad.py::test_before": "passed",
        "gpu/test_bad.py::test_wrong": "failed",
        "gpu/test_bad.py::test_untidy": "error",
        "gpu/test_bad.py::test_dies": "crashed",
        "gpu/test_bad.py::test_after": "passed",
        "gpu/test_slow.py::test_hangs": "timeout",
        "gpu/test_slow.py::test_after": "passed",
        "gpu/test_alone_end.py::test_last": "passed",
        "gpu/test_alone_end.py::test_never": "passed",
        "gpu/test_alone_end.py::test_skipped": "skipped",
        "conformance/test_poison.py::test_leaves": "failed",
        "conformance/test_poison.py::test_finds": "passed",
        "device/test_broken.py": "error",
    }
    assert "not equal" in last["gpu/test_bad.py::test_wrong"]["error"]
    assert "left open" in last["gpu/test_bad.py::test_untidy"]["error"]
    assert "status 7" in last["gpu/test_bad.py::test_dies"]["error"]
    assert "nothing_of_that_name" in last["device/test_broken.py"]["error"]
    assert last["gpu/test_slow.py::test_hangs"]["seconds"] >= 5
    assert not Path("/proc", (tmp_path / "out" / "left").read_text()).exists(), "what a test started is ended too"
    log = (tmp_path / "out" / "log.txt").read_text()
    assert "figure a b" in log, "what passing tests print"
    assert 'test_slow.py", line' in log, "where the one that hung was"
    assert lines[-1] == "1 crashed, 2 error, 2 failed, 9 passed, 1 skipped, 1 timeout"
    assert [line.split()[0] for line in lines[-7:-1]].count("error") == 2
    assert len("\n".join(lines)) < 10_000


def test_what_passed_is_left_out_and_what_did_not_is_run_again(tmp_path: Path) -> None:
    written(tmp_path, only=("tests/gpu/test_bad.py", "tests/gpu/test_good.py"))
    ran(tmp_path, "--id", "first", "--only", "tests/gpu/test_bad.py")
    missing = ("--missing", "--only", "tests/gpu")
    code, lines, _ = ran(tmp_path, "--id", "first", *missing)
    assert code == 1
    assert "8 tests, 2 of them passed before" in lines
    assert lines[-1] == "1 crashed, 1 error, 1 failed, 3 passed"
    text = (tmp_path / "tests/gpu/test_bad.py").read_text()
    (tmp_path / "tests/gpu/test_bad.py").write_text(
        text.replace("1 == 2", "True").replace("raise ValueError", "print").replace("os._exit", "print")
    )
    code, lines, _ = ran(tmp_path, "--id", "first", *missing)
    assert (code, lines[-1]) == (0, "3 passed")
    code, lines, _ = ran(tmp_path, "--id", "second", *missing)
    assert (code, lines[-1]) == (0, "8 passed")


def test_a_run_ends_in_its_time_and_names_what_it_did_not_reach(tmp_path: Path) -> None:
    written(tmp_path, last=1000, only=("tests/gpu/test_good.py", "tests/gpu/test_alone_end.py"))
    begin = time.monotonic()
    code, lines, last = ran(tmp_path, "--seconds", "20", "--only", "tests/gpu")
    assert time.monotonic() - begin < 20
    assert code == 1
    assert {last[name]["outcome"] for name in last if "test_good" in name} == {"passed"}
    assert last["gpu/test_alone_end.py::test_last"]["outcome"] == "cut"
    assert last["gpu/test_alone_end.py::test_never"]["outcome"] == "not run"
    assert lines[-1] == "1 cut, 2 not run, 3 passed"


def test_one_test_is_run_by_its_name_and_none_is_no_success(tmp_path: Path) -> None:
    written(tmp_path, only=("tests/gpu/test_good.py",))
    code, lines, _ = ran(tmp_path, "--only", "tests/gpu/test_good.py::test_one")
    assert (code, lines[-1]) == (0, "1 passed")
    code, lines, _ = ran(tmp_path, "--only", "tests/device")
    assert (code, lines[-1]) == (1, "no tests")


def test_what_measures_runs_alone_and_long_files_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    from gpu_acceptance import parts

    written(tmp_path)
    (tmp_path / "tests/device/test_graph.py").write_text("")
    names = [f"tests/gpu/test_good.py::test_{number}" for number in range(5)]
    names += ["tests/gpu/test_bad.py::test_a", "tests/gpu/test_bad.py::test_b", "tests/gpu/test_bad.py::test_c"]
    names += ["tests/gpu/test_alone_end.py::test_last", "tests/gpu/test_alone_end.py::test_never"]
    names += [f"tests/device/test_graph.py::{name}" for name in ("test_executable_states_what_it_costs[gpu]", "test_b")]
    made = parts(tmp_path, names)
    assert [(len(part.names), part.alone, part.shares) for part in made] == [
        (2, False, False), (2, False, False), (1, False, False),  # cut
        (3, False, True),
        (1, False, False),
        (2, True, False),
        (1, True, False),
    ]  # fmt: skip
    assert sorted(name for part in made for name in part.names) == sorted(names)


def test_a_long_table_is_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    from gpu_acceptance import Results, table

    results = Results(tmp_path / "results.jsonl", "")
    for number in range(300):
        results.add(f"tests/gpu/test_many.py::test_{number}[{'x' * 40}]", "failed", 1.5, "word " * 400)
    text = table(results)
    assert len(text) < 10_000
    assert text.endswith("300 failed")
    assert "more: results.jsonl has them" in text
