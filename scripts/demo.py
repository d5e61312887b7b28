"""The main job on real input, as a user would run it: fetch, capture, verify, answer in a process without torch.

Each step is a command of the README in a process of its own; this prints what they say and how long they took.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
HELIOGRAPH = ROOT / ".venv" / "bin" / "heliograph"
CORES = ROOT / "build" / "demo"
QUESTION = "What is the capital of France?"


def run(*command: str | Path) -> tuple[str, float, int]:
    """A command's standard output, its seconds, and its peak resident bytes (of it and its children)."""
    print(f"$ {' '.join(str(part).removeprefix(f'{ROOT}/') for part in command)}", flush=True)
    start = time.perf_counter()
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        output = process.stdout.read() if process.stdout else ""
        _, status, usage = wait4(process)
    seconds = time.perf_counter() - start
    if status:
        print(output)
        sys.exit(f"{command[0]} exited with {status}")
    return output, seconds, usage.ru_maxrss * 1024


def wait4(process: subprocess.Popen[str]) -> tuple[int, int, resource.struct_rusage]:

    pid, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return pid, process.returncode, usage


def main() -> None:
    started = time.time()
    shutil.rmtree(CORES, ignore_errors=True)
    model, _, _ = run(sys.executable, "scripts/fetch_model.py")
    captured, capture_seconds, capture_bytes = run(HELIOGRAPH, "capture", model.strip(), "--cores", CORES, "--json")
    report = json.loads(captured)
    core = Path(report["core"])
    if (core / "core.json").stat().st_mtime < started:
        sys.exit(f"{core} is older than this run")
    show_capture(report, capture_seconds, capture_bytes)
    verified, _, _ = run(HELIOGRAPH, "verify", core)
    print(verified)
    answer, seconds, peak = run(HELIOGRAPH, "generate", core, QUESTION, "--max-tokens", "32", "--json")
    reply = json.loads(answer)
    if reply["torch"]:
        sys.exit("the fresh process has torch in its memory")
    print(f"Q: {QUESTION}\nA: {reply['answer']}")
    print("torch: not loaded")
    print(
        f"load {reply['load_ns'] / 1e6:.0f} ms, first token {reply['first_token_ns'] / 1e6:.0f} ms, "
        f"{reply['tokens_per_second']:.1f} tokens/s, process {seconds:.2f} s, peak memory {peak / 2**20:.0f} MiB"
    )
    print(f"the core is in {core.relative_to(ROOT)}")


def show_capture(report: dict, seconds: float, peak: int) -> None:
    graphs = report["graphs"]
    print(
        f"captured {len(graphs)} graphs, {sum(graph['nodes'] for graph in graphs)} nodes, "
        f"{len(report['functions'])} functions, {len(report['modules'])} modules, "
        f"{report['weights']['size']} bytes of weights, {report['bytes']['graphs']} bytes of graphs"
    )
    for phase in report["provenance"]["phases"]:
        print(f"  {phase['name']:<24} {phase['nanoseconds'] / 1e9:8.2f} s")
    print(f"  capture in all           {seconds:8.2f} s, peak memory {peak / 2**20:.0f} MiB\n")


if __name__ == "__main__":
    main()
