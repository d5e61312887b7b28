"""What every benchmark says about the machine and the tree that it ran on."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent


def machine() -> dict[str, str | int | list[str]]:
    """Processor, how many this process may use, governor, kernel, Python, commit."""
    return {
        "processor": processor(),
        "processors": len(os.sched_getaffinity(0)),
        "governor": governor(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "commit": commit(),
    }


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def governor() -> str:
    path = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return path.read_text().strip() if path.exists() else "not stated by the machine"


def commit() -> str:
    run = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return run.stdout.strip() or "not a repository"
