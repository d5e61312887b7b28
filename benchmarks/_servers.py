"""The two servers that are measured, each with the command that its users would type, and what both of them serve."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from _machine import ROOT, machine

STOP = 30.0  # seconds that a server may take to end
OURS, PEER = "ours", "peer"
MODEL = "model"  # its name in requests
THREADS = 2
QUESTION = [{"role": "user", "content": "What is the capital of France, please?"}]  # 39 tokens as a chat
TOKENS = 16  # of its answer
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Side:
    """A server: its command without the port, and the folder or file that it serves."""

    name: str
    command: tuple[str, ...]
    serves: Path

    def shown(self) -> str:
        """The command without paths of this machine."""
        return " ".join(Path(part).name if "/" in part else part for part in (*self.command, "--port", "N"))


@dataclass(slots=True)
class Running:
    """A server's process. ``events`` are the lines that ours prints, each with the time at which it came."""

    side: Side
    process: subprocess.Popen[str]
    port: int
    started_ns: int  # the monotonic clock before exec
    events: list[tuple[int, dict[str, Any]]] = field(default_factory=list)

    def peak_bytes(self) -> int:
        """Largest resident memory of the process and of those it started, added up."""
        pids = [self.process.pid, *children(self.process.pid)]
        status = (Path(f"/proc/{pid}/status").read_text().splitlines() for pid in pids)
        peaks = (next(line for line in lines if line.startswith("VmHWM")) for lines in status)
        return sum(int(line.split()[1]) * 1024 for line in peaks)


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def arguments_of(description: str | None, runs: int) -> argparse.Namespace:
    """What every benchmark of a server takes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("core", type=Path, nargs="?", help="default: the newest of make demo, else captured now")
    parser.add_argument("--runs", type=int, default=runs)
    parser.add_argument("--program", type=Path, help="another heliograph than that of .venv-serve")
    return parser.parse_args()


def heliograph() -> Path:
    """The command as users have it: installed without torch by `make .venv-serve/.done`, from this very source."""
    installed = ROOT / ".venv-serve" / ".done"
    sources = (ROOT / "src").rglob("*.py")
    if not installed.is_file() or installed.stat().st_mtime < max(path.stat().st_mtime for path in sources):
        sys.exit("what is installed for serving is missing or older than the source: run make .venv-serve/.done")
    return installed.parent / "bin" / "heliograph"


def model_file() -> Path:
    return Path(output(sys.executable, "scripts/fetch_model.py"))


def peer_program() -> Path | None:
    """llama-server as `make peer` built it, if it did."""
    found = subprocess.run(
        [sys.executable, "scripts/peer.py", "--where"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    return Path(found.stdout.strip()) if found.returncode == 0 else None


def core_folder(given: Path | None) -> Path:
    """The core that was named, else the newest of `make demo`, else one that is captured now."""
    if given is not None:
        return given
    cores = [path for path in (ROOT / "build" / "demo").glob("[!.]*") if (path / "core.json").is_file()]
    if cores:
        return max(cores, key=lambda path: (path / "core.json").stat().st_mtime)
    command = (Path(sys.executable).parent / "heliograph", "capture", model_file(), "--cores", "build/demo", "--json")
    return Path(json.loads(output(*command))["core"])


def output(*command: str | Path) -> str:
    return subprocess.run(
        list(map(str, command)), cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()


def ours(core: Path, program: Path | None) -> Side:
    command = (str(program or heliograph()), "serve", str(core), "--model", MODEL, "--threads", str(THREADS))
    return Side(OURS, (*command, "--host", "127.0.0.1"), core)


def both(core: Path, program: Path | None, *peer_options: str) -> list[Side]:
    """Ours, and the peer if it is built; the same model, the same threads."""
    llama = peer_program()
    if llama is None:
        return [ours(core, program)]
    model, threads = model_file(), str(THREADS)
    command = (str(llama), "-m", str(model), "-t", threads, "-tb", threads, "--no-ui", "--no-warmup")
    return [ours(core, program), Side(PEER, (*command, "--host", "127.0.0.1", *peer_options), model)]


def limited(side: Side, tokens: int) -> dict[str, object]:
    """Fields of a request for exactly so many tokens, greedy, end of text never chosen, and nothing kept of earlier
    requests. (The peer's name for that is ignore_eos; with ours of that name end of text is a token like any other.)"""
    fields: dict[str, object] = {"model": MODEL, "max_tokens": tokens, "temperature": 0}
    return fields | ({"min_tokens": tokens} if side.name == OURS else {"ignore_eos": True, "cache_prompt": False})


def warm(path: Path) -> None:
    """Puts every file into the page cache."""
    for file in path.rglob("*") if path.is_dir() else [path]:
        if file.is_file():
            with file.open("rb") as opened:
                while opened.read(8 << 20):
                    pass


@contextmanager
def running(side: Side) -> Iterator[Running]:
    """The server, from before exec until it has ended. Ours must end with 0."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [*side.command, "--port", str(port)]
    started = time.monotonic_ns()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=None if side.name == OURS else subprocess.DEVNULL, text=True
    )
    server = Running(side, process, port, started)
    reader = threading.Thread(target=read_events, args=(server,))
    reader.start()
    try:
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        reader.join()
    if side.name == OURS and code != 0:
        sys.exit(f"{side.shown()} ended with {code}")


def read_events(server: Running) -> None:
    for line in server.process.stdout or ():
        if server.side.name == OURS:
            server.events.append((time.monotonic_ns(), json.loads(line)))


def taken(
    sides: Sequence[Side], runs: int, sample: Callable[[Side], S], shown: Callable[[S], Mapping[str, float]]
) -> dict[str, list[S]]:
    """``runs`` samples of each side, A B B A, each shown as it comes."""
    samples: dict[str, list[S]] = {side.name: [] for side in sides}
    for number in range(runs):
        for side in sides if number % 2 == 0 else reversed(sides):
            one = sample(side)
            samples[side.name].append(one)
            figures = ", ".join(f"{name} {value:.3g}" for name, value in shown(one).items())
            print(f"{side.name}: {figures}", file=sys.stderr, flush=True)
    return samples


def conditions(sides: Sequence[Side], busy: float) -> dict[str, object]:
    """What a result says of how it was taken."""
    return {
        "page_cache": "warm",
        "threads": THREADS,
        "pinning": "none",
        "load": {"average": os.getloadavg()[0], "busy_share_at_start": round(busy, 3)},
        "commands": {side.name: side.shown() for side in sides},
        **machine(),
    }
