"""How these tests capture and replay: each in a fresh process, as it is done outside tests.

Files named test_alone_*.py measure what is free on the GPU: nothing else may use it meanwhile (no ``-n``).
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from heliograph.capture.environment import FIXED

HERE = Path(__file__).parent
LIMIT_SECONDS = 150
LAST_WORDS_SECONDS = 8  # for a process that is stopped to say where it is
ERROR = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Refused)\b")


def prepared(
    cores: Path, factory: str, *arguments: str, limit: int = LIMIT_SECONDS, compared: bool = True, **more: object
) -> dict[str, Any]:
    """Captures ``factory`` (of factories.py, or path:function); what prepare.py says. What was replayed there has to
    equal the uncaptured model, unless ``compared`` is false."""
    cores.mkdir(parents=True, exist_ok=True)
    where = factory if ":" in factory else f"{HERE / 'factories.py'}:{factory}"
    request = {"factory": where, "arguments": list(arguments), "cores": str(cores), **more}
    said = _last_line([sys.executable, str(HERE / "prepare.py")], json.dumps(request), limit)
    if compared and "eager" in said:
        check_replays(said)
    return said


def check_replays(said: dict[str, Any]) -> None:
    """The replays of the preparing process gave what the uncaptured model gives, numbers, and with other data others.
    (With one replay a bucket there is nothing to tell that by.)"""
    eager = said["eager"]
    assert eager["steps"] == len(said["digests"])
    assert eager["different"] == 0, f"{eager['different']} results are not the uncaptured model's: {eager['first']}"
    assert eager["nan"] == [], "a NaN fails, also where both sides have it"
    if len(said["digests"]) > len(said["nodes"]):
        assert all(count > 1 for count in said["outputs"].values()), said["outputs"]


def outputs(said: dict[str, Any], entry: str, shape: dict[str, int], field: str) -> bytes:
    """An output of a bucket as the last replay of the plan left it in a process without torch."""
    command = [sys.executable, str(HERE / "replay.py"), str(said["core"]), str(Path(said["core"]).parent / "plan")]
    told = _last_line([*command, json.dumps([entry, shape, field])], "", LIMIT_SECONDS)
    return bytes.fromhex(told["output"])


def last_inputs(said: dict[str, Any], entry: str, shape: dict[str, int]) -> dict[str, bytes]:
    """The inputs that the plan gives a bucket last."""
    _, steps = msgspec.msgpack.decode((Path(said["core"]).parent / "plan").read_bytes())
    found: dict[str, bytes] = [inputs for name, of, inputs in steps if (name, of) == (entry, shape)][-1]
    return found


def refused(cores: Path, factory: str, *arguments: str, limit: int = LIMIT_SECONDS, **more: object) -> str:
    """What a capture that fails says."""
    cores.mkdir(parents=True, exist_ok=True)
    where = factory if ":" in factory else f"{HERE / 'factories.py'}:{factory}"
    request = {"factory": where, "arguments": list(arguments), "cores": str(cores), **more}
    ended = _run([sys.executable, str(HERE / "prepare.py")], json.dumps(request), limit)
    assert ended.returncode != 0, ended.stdout[-2000:]
    return ended.stderr


def replayed(said: dict[str, Any], limit: int = LIMIT_SECONDS) -> dict[str, Any]:
    """Replays a prepared core in a process without torch; what replay.py says."""
    core = Path(said["core"])
    plan = core.parent / "plan"
    command = [sys.executable, str(HERE / "replay.py"), str(core), *([str(plan)] if plan.exists() else [])]
    return _last_line(command, "", limit)


def script(name: str, *arguments: str, given: object = None, limit: int = LIMIT_SECONDS) -> dict[str, Any]:
    """Runs a script of this folder; the JSON object that it prints last."""
    return _last_line([sys.executable, str(HERE / name), *arguments], json.dumps(given), limit)


def environment() -> dict[str, str]:
    """For a process of these tests. What a capture fixes is fixed already: else it would start itself anew, behind an
    import of PyTorch that takes seconds."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    path = os.pathsep.join(filter(None, [str(HERE.parent), kept.get("PYTHONPATH", "")]))
    return {**kept, **FIXED, "PYTHONPATH": path, "PYTHONFAULTHANDLER": "1"}


def _last_line(command: list[str], given: str, limit: int) -> dict[str, Any]:
    ended = _run(command, given, limit)
    assert ended.returncode == 0, f"{_why(ended)}\n{ended.stderr[-6000:]}"
    found: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    return found


def _why(ended: subprocess.CompletedProcess[str]) -> str:
    """The exception that a process ended with, in one line."""
    lines = ended.stderr.splitlines()
    last = max((number for number, line in enumerate(lines) if ERROR.match(line)), default=len(lines))
    return " ".join([f"{Path(ended.args[1]).name} ended with {ended.returncode}:", *lines[last:]]).strip()[:600]


def _run(command: list[str], given: str, limit: int) -> subprocess.CompletedProcess[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=environment(), process_group=0, **pipes) as process:  # type: ignore[call-overload]
        try:
            output, errors = process.communicate(given, limit)
        except subprocess.TimeoutExpired:
            errors = _stopped(process)
            pytest.fail(f"{Path(command[1]).name} had not ended after {limit} s\n{errors[-8000:]}")
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _stopped(process: subprocess.Popen[str]) -> str:
    """Ends a process with those that it started, and gives what they said on the way: Python says where each thread is.
    Those it started go first, since it tells what they said."""
    started = [pid for pid in _group(process.pid) if pid != process.pid]
    for pids, wanted in ((started, signal.SIGABRT), ([process.pid], signal.SIGABRT), ([process.pid], signal.SIGKILL)):
        for pid in pids:
            if pid in _group(process.pid):
                os.kill(pid, wanted)
        try:
            return process.communicate(timeout=LAST_WORDS_SECONDS)[1]
        except subprocess.TimeoutExpired:
            for pid in started:
                if pid in _group(process.pid):
                    os.kill(pid, signal.SIGKILL)
    return ""


def _group(leader: int) -> list[int]:
    """The processes of a process group that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group, *_ = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(group) == leader and state != "Z":
            found.append(int(path.parent.name))
    return found
