"""Runs every benchmark that needs no GPU, each in its own process, and prints their last lines as one table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def main() -> int:
    failed = False
    for script in sorted((ROOT / "benchmarks").glob("[!_]*.py")):
        if script.name.startswith("gpu_"):
            continue
        print(f"::: {script.name}", flush=True)
        run = subprocess.run([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
        print(run.stdout, end="")
        last = run.stdout.strip().rpartition("\n")[2]
        try:
            result = json.loads(last)
        except json.JSONDecodeError:
            print(f"{script.name}: exit {run.returncode}, last line is no JSON object", file=sys.stderr)
            failed = True
            continue
        failed |= run.returncode != 0 or result.get("ok") is False
    return failed


if __name__ == "__main__":
    sys.exit(main())
