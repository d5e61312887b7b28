"""How these tests capture and replay: each in a fresh process, as it is done outside tests.

Files named test_alone_*.py measure what is free on the GPU: nothing else may use it meanwhile (no ``-n``).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

HERE = Path(__file__).parent


def prepared(cores: Path, factory: str, *arguments: str, limit: int = 300, **more: object) -> dict[str, Any]:
    """Captures ``factory`` (of factories.py, or path:function); what prepare.py says."""
    cores.mkdir(parents=True, exist_ok=True)
    where = factory if ":" in factory else f"{HERE / 'factories.py'}:{factory}"
    request = {"factory": where, "arguments": list(arguments), "cores": str(cores), **more}
    return _last_line([sys.executable, str(HERE / "prepare.py")], json.dumps(request), limit)


def outputs(said: dict[str, Any], entry: str, shape: dict[str, int], field: str) -> bytes:
    """An output of a bucket as the last replay of the plan left it in a process without torch."""
    command = [sys.executable, str(HERE / "replay.py"), str(said["core"]), str(Path(said["core"]).parent / "plan")]
    told = _last_line([*command, json.dumps([entry, shape, field])], "", 300)
    return bytes.fromhex(told["output"])


def last_inputs(said: dict[str, Any], entry: str, shape: dict[str, int]) -> dict[str, bytes]:
    """The inputs that the plan gives a bucket last."""
    _, steps = msgspec.msgpack.decode((Path(said["core"]).parent / "plan").read_bytes())
    found: dict[str, bytes] = [inputs for name, of, inputs in steps if (name, of) == (entry, shape)][-1]
    return found


def refused(cores: Path, factory: str, *arguments: str, limit: int = 300, **more: object) -> str:
    """What a capture that fails says."""
    cores.mkdir(parents=True, exist_ok=True)
    where = factory if ":" in factory else f"{HERE / 'factories.py'}:{factory}"
    request = {"factory": where, "arguments": list(arguments), "cores": str(cores), **more}
    ended = _run([sys.executable, str(HERE / "prepare.py")], json.dumps(request), limit)
    assert ended.returncode != 0, ended.stdout[-2000:]
    return ended.stderr


def replayed(said: dict[str, Any], limit: int = 300) -> dict[str, Any]:
    """Replays a prepared core in a process without torch; what replay.py says."""
    core = Path(said["core"])
    plan = core.parent / "plan"
    command = [sys.executable, str(HERE / "replay.py"), str(core), *([str(plan)] if plan.exists() else [])]
    return _last_line(command, "", limit)


def script(name: str, *arguments: str, given: object = None, limit: int = 300) -> dict[str, Any]:
    """Runs a script of this folder; the JSON object that it prints last."""
    return _last_line([sys.executable, str(HERE / name), *arguments], json.dumps(given), limit)


def _last_line(command: list[str], given: str, limit: int) -> dict[str, Any]:
    ended = _run(command, given, limit)
    assert ended.returncode == 0, ended.stderr[-6000:]
    found: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    return found


def _run(command: list[str], given: str, limit: int) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), environment.get("PYTHONPATH", "")]).rstrip(
        os.pathsep
    )
    return subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=limit, env=environment, check=False
    )
