"""When figures count: the spread of the samples, and what else the machine was doing."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

SPREAD = 0.15  # interquartile range over median; above it a run is not valid
BUSY = 0.10  # share of the processors that other work uses; above it a run is not valid


def spread(values: Sequence[float]) -> float:
    """Interquartile range over the median."""
    low, middle, high = statistics.quantiles(values, n=4)
    return (high - low) / middle


def busy_share(seconds: float = 0.5) -> float:
    """How much of the processors other work uses, before ours begins."""

    def read() -> tuple[int, int]:
        fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]

    total, idle = read()
    time.sleep(seconds)
    later, idle_later = read()
    return 1 - (idle_later - idle) / max(1, later - total)


def invalid(spreads: Mapping[str, float], busy: float) -> list[str]:
    """Why a run does not count: sides whose samples spread too widely, and other work on the machine."""
    wide = [f"{side}: interquartile spread {value:.0%}" for side, value in spreads.items() if value > SPREAD]
    return wide + ([f"other work uses {busy:.0%} of the processors"] if busy > BUSY else [])


def print_result(*, ok: bool, problems: Sequence[str], **fields: object) -> bool:
    """The last line of a benchmark. True if the run counts and its bars hold."""
    for problem in problems:
        print(f"not valid: {problem}")
    print(json.dumps({**fields, "ok": ok, "valid": not problems, "problems": list(problems)}))
    return ok and not problems
