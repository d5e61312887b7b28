"""Loads a core and prints, as JSON, what that took of memory at most: python load_peak.py CORE PUBLIC_KEY."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from heliograph.core.policy import Policy
from heliograph.core.verify import verify
from heliograph.runtime.load import load


def kib(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def main(core: str, key: str) -> None:
    before = kib("VmRSS")
    with verify(Path(core), Policy.only(bytes.fromhex(key))) as verified, load(verified) as program:
        peak = kib("VmHWM")
        weights = program.core.weights.size
    print(json.dumps({"taken": (peak - before) << 10, "weights": weights}))


if __name__ == "__main__":
    main(*sys.argv[1:])
