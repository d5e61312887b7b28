"""The main job on real input, as a user would run it: fetch, capture, verify, answer in a process without torch, serve.

Each step is a command of the README in a process of its own; this prints what they say and how long they took.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
HELIOGRAPH = ROOT / ".venv" / "bin" / "heliograph"
CORES = ROOT / "build" / "demo"
QUESTION = "What is the capital of France?"
LIMIT = 60.0  # seconds that the server may take to start, and to end


def announce(command: list[str]) -> None:
    print(f"$ {' '.join(part.removeprefix(f'{ROOT}/') for part in command)}", flush=True)


def run(*words: str | Path) -> tuple[str, float, int]:
    """A command's standard output, its seconds, and its peak resident bytes (of it and its children)."""
    command = list(map(str, words))
    announce(command)
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        output = process.stdout.read() if process.stdout else ""
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - start
    if process.returncode:
        print(output)
        sys.exit(f"{command[0]} exited with {process.returncode}")
    return output, seconds, usage.ru_maxrss * 1024


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
        f"{reply['tokens_per_second']:.1f} tokens/s, process {seconds:.2f} s, peak memory {peak / 2**20:.0f} MiB\n"
    )
    serve(core)
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


def serve(core: Path) -> None:
    """A server, a chat over HTTP, and the server's end. Its clock starts before exec."""
    command = [str(HELIOGRAPH), "serve", str(core), "--port", "0"]
    announce(command)
    start = time.monotonic_ns()
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as server:
        try:
            said = events(server)
            url = next(event["url"] for event in said if event["event"] == "listening")
            options = ("--message", QUESTION, "--max-tokens", "32", "--temperature", "0", "--json")
            answer, _, _ = run(HELIOGRAPH, "chat", url, *options)
            for event in said:
                if event["event"] == "phase":
                    print(f"  {event['name']:<24} {event['nanoseconds'] / 1e6:8.1f} ms")
                if event["event"] == "ready":
                    print(f"  {'ready':<24} {event['nanoseconds'] / 1e6:8.1f} ms")
                    break
            processes = [server.pid, *children(server.pid)]
            if any(has_torch(pid) for pid in processes):
                sys.exit("a process of the server has torch in its memory")
        finally:
            server.send_signal(signal.SIGTERM)
            ender = threading.Timer(LIMIT, server.kill)
            ender.start()
            code = server.wait()
            ender.cancel()
    if code:
        sys.exit(f"the server exited with {code}")
    reply = json.loads(answer)
    print(f"Q: {QUESTION}\nA: {reply['answer']}")
    print(f"torch: not loaded, by the memory maps of the {len(processes)} processes of the server")
    print(
        f"first token {(reply['first_token_at_ns'] - start) / 1e6:.0f} ms after the server's process started, "
        f"{reply['tokens_per_second']:.1f} tokens/s; ended by SIGTERM with exit code 0"
    )


def events(server: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """The lines that the server prints, as they come."""
    held, end = b"", time.monotonic() + LIMIT
    while server.stdout and select.select([server.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
        data = os.read(server.stdout.fileno(), 1 << 16)
        if not data:
            break
        *lines, held = (held + data).split(b"\n")
        yield from map(json.loads, lines)
    sys.exit("the server did not start")


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def has_torch(pid: int) -> bool:
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()


if __name__ == "__main__":
    main()
