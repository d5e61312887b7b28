"""What a load costs, phase by phase, with and without checks (chunk digests, self-tests).

    python benchmarks/load.py [CORE] [--runs 5] [--cache warm|cold] [--ready all|first]

CORE is by default the newest of `make demo`. Every load is a fresh process; the clock starts before it is started.
Sides alternate A B B A. The page cache is put into the stated condition before each load: warm reads every file of the
core, cold drops its pages. Medians over the runs; a run whose interquartile spread is above 15 %, or on a machine that
other work keeps busy, is not valid. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from _judge import busy_share, invalid, print_result, spread
from _machine import machine

from heliograph.core.policy import Policy
from heliograph.core.verify import verify
from heliograph.runtime.load import load

ROOT = Path(__file__).parent.parent
SIDES = ("checked", "unchecked")


def child(core: Path, check: bool, ready: str) -> None:
    """One load, in the process that the parent started."""
    begun = time.time_ns()
    with verify(core, Policy.local()) as verified:
        verified_at = time.time_ns()
        with load(verified, ready="first" if ready == "first" else "all", check=check) as program:
            done = time.time_ns()
            phases = {"verify": verified_at - begun, **program.phases}
            print(json.dumps({"phases": phases, "begun_at": begun, "ready_at": done}))


def set_cache(core: Path, condition: str) -> None:
    for path in core.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                if condition == "cold":
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                else:
                    while file.read(8 << 20):
                        pass


def command(python: Path, core: Path, side: str, ready: str) -> list[str]:
    return [str(python), __file__, str(core), "--child", side, "--ready", ready]


def one(python: Path, core: Path, side: str, ready: str) -> dict[str, int]:
    start = time.time_ns()
    run = subprocess.run(command(python, core, side, ready), stdout=subprocess.PIPE, check=True, text=True)
    result = json.loads(run.stdout)
    started = result["begun_at"] - start
    return {"start, imports": started, **result["phases"], "process start to ready": result["ready_at"] - start}


def measure(python: Path, core: Path, runs: int, cache: str, ready: str) -> dict[str, list[dict[str, int]]]:
    measured: dict[str, list[dict[str, int]]] = {side: [] for side in SIDES}
    for number in range(runs):
        for side in SIDES if number % 2 == 0 else SIDES[::-1]:
            set_cache(core, cache)
            measured[side].append(one(python, core, side, ready))
    return measured


def report(core: Path, measured: dict[str, list[dict[str, int]]], arguments: argparse.Namespace, busy: float) -> bool:
    medians = {
        side: {phase: int(statistics.median(run[phase] for run in runs)) for phase in runs[0]}
        for side, runs in measured.items()
    }
    spreads = {side: spread([run["process start to ready"] for run in runs]) for side, runs in measured.items()}
    print(f"{core.name}, {arguments.cache} page cache, ready={arguments.ready}, medians of {arguments.runs}, ms")
    print(f"{'phase':>24} {'checked':>10} {'unchecked':>10}")
    for phase in medians["checked"]:
        left, right = (medians[side].get(phase, 0) / 1e6 for side in SIDES)
        print(f"{phase:>24} {left:10.1f} {right:10.1f}")
    core_json = json.loads((core / "core.json").read_text())
    problems = invalid(spreads, busy)
    return print_result(
        benchmark="load",
        ok=True,
        bar=None,
        problems=problems,
        core=core.name,
        weights_bytes=core_json["weights"]["size"],
        nodes=sum(graph["nodes"] for graph in core_json["graphs"]),
        page_cache=arguments.cache,
        ready=arguments.ready,
        runs=arguments.runs,
        median_ns=medians,
        interquartile_spread={side: round(value, 4) for side, value in spreads.items()},
        load={"average": os.getloadavg()[0], "busy_share_at_start": round(busy, 3)},
        threads="one a processor, for weights and for kernels; not pinned",
        commands={side: shown(core, side, arguments.ready) for side in SIDES},
        **machine(),
    )


def shown(core: Path, side: str, ready: str) -> str:
    """A side's command without paths of this machine."""
    return " ".join(Path(part).name for part in command(Path("python"), core, side, ready))


def newest() -> Path:
    cores = [path for path in (ROOT / "build" / "demo").glob("[!.]*") if (path / "core.json").is_file()]
    if not cores:
        sys.exit("no core in build/demo: run make demo, or name a core")
    return max(cores, key=lambda path: (path / "core.json").stat().st_mtime)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("core", type=Path, nargs="?")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cache", choices=["warm", "cold"], default="warm")
    parser.add_argument("--ready", choices=["all", "first"], default="first")
    parser.add_argument("--child", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    core = arguments.core or newest()
    if arguments.child:
        child(core, arguments.child == "checked", arguments.ready)
        return 0
    busy = busy_share()
    serve = ROOT / ".venv-serve" / "bin" / "python"
    python = serve if serve.is_file() else Path(sys.executable)
    one(python, core, "checked", arguments.ready)  # compiled bytecode is there for all
    measured = measure(python, core, max(2, arguments.runs), arguments.cache, arguments.ready)
    return 0 if report(core, measured, arguments, busy) else 1


if __name__ == "__main__":
    sys.exit(main())
