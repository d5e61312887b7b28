"""Runs the tests: each folder of ``tests/`` in a process of its own, as many at once as there are processors (two at
most: some tests load the machine on purpose). Arguments go to pytest. The last line is the sum.

Processes are apart because cores lie at fixed addresses: what one folder's fixtures hold is in nobody's way.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TESTS = Path(__file__).parent.parent / "tests"
SUM = re.compile(r"(\d+) passed, (\d+) failed, (\d+) skipped")
NOTHING_COLLECTED = 5  # pytest's exit code; happens when arguments select tests of other folders only
LONGEST_FIRST = ("smollm2", "capture", "cli", "core", "runtime", "accuracy", "ops", "models", "fresh_process")


def parts() -> list[list[str]]:
    """Folders with tests, those that take longest first, then the files beside them."""
    folders = {path.name for path in TESTS.iterdir() if any(path.rglob("test_*.py"))}
    ordered = [name for name in LONGEST_FIRST if name in folders] + sorted(folders - set(LONGEST_FIRST))
    return [[f"tests/{name}"] for name in ordered] + [
        [f"tests/{path.name}" for path in sorted(TESTS.glob("test_*.py"))]
    ]


def run(part: list[str]) -> tuple[int, tuple[int, int, int]]:
    """One pytest: its output is shown when it has ended. Gives its exit code and its sum."""
    command = [sys.executable, "-m", "pytest", "-q", *part, *sys.argv[1:]]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=TESTS.parent)
    print(f"::: {' '.join(part)}\n{done.stdout}", flush=True)
    found = SUM.fullmatch(done.stdout.strip().rpartition("\n")[2])
    passed, failed, skipped = map(int, found.groups()) if found else (0, 0, 0)
    if done.returncode not in (0, NOTHING_COLLECTED):
        failed = max(1, failed)  # also a process that died without a sum
    return done.returncode, (passed, failed, skipped)


def main() -> int:
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        results = list(pool.map(run, parts()))
    passed, failed, skipped = (sum(column) for column in zip(*(counts for _, counts in results), strict=True))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return failed > 0 or passed == 0


if __name__ == "__main__":
    sys.exit(main())
