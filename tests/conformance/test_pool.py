"""The worker pool in C++, alone and under the thread sanitizer, which finds a missing barrier without luck."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_pool_has_no_data_race() -> None:
    done = subprocess.run([ROOT / "scripts" / "sanitize.sh", "thread"], capture_output=True, text=True, timeout=280)
    assert (done.returncode, done.stdout) == (0, "native pool test passed\n"), done.stderr
