"""Runs every benchmark that needs no GPU, each in a process of its own, and prints their verdicts as one table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def run(script: Path) -> dict[str, Any]:
    """The JSON object of a benchmark's last line, with its exit code."""
    print(f"::: {script.name}", flush=True)
    done = subprocess.run([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="", flush=True)
    try:
        result = json.loads(done.stdout.strip().rpartition("\n")[2])
    except json.JSONDecodeError:
        result = {"ok": False, "valid": False, "problems": ["the last line is no JSON object"]}
    return {**result, "exit": done.returncode}


def figure(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else "-"


def main() -> bool:
    scripts = sorted((ROOT / "benchmarks").glob("[!_]*.py"))
    results = {script.stem: run(script) for script in scripts if not script.stem.startswith("gpu_")}
    print(f"\n{'benchmark':<12} {'ours':>10} {'peer':>10} {'bar':>8}  verdict")
    for name, result in results.items():
        figures = (figure(result.get(field)) for field in ("ours", "peer", "bar"))
        verdict = "not valid" if not result.get("valid", True) else "ok" if result.get("ok") else "misses its bar"
        print("{:<12} {:>10} {:>10} {:>8}  {}".format(name, *figures, verdict))
    return any(result["exit"] or not result.get("ok") for result in results.values())


if __name__ == "__main__":
    sys.exit(main())
