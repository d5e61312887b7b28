"""Replays what ``capture_and_replay.py`` replayed, in a process of its own; the last line is JSON.

python replay_in_fresh_process.py FOLDER WORKERS
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from blake3 import blake3

from heliograph.core.policy import Policy
from heliograph.core.verify import verify
from heliograph.runtime.load import load


def main(folder: str, workers: str) -> None:
    written = json.loads((Path(folder) / "plan.json").read_text())
    different = []
    with (
        verify(Path(written["core"]), Policy.local()) as verified,
        load(verified, workers=int(workers), units=written["units"]) as program,
    ):
        for step, replay in enumerate(written["replays"]):
            entry, shape = replay["entry"], replay["shape"]
            with (Path(folder) / f"{step}.inputs").open("rb") as file:
                for field, size in replay["inputs"].items():
                    program.write(entry, shape, field, file.read(size))
            program.run(entry, **shape)
            digest = blake3()
            for field in written["outputs"]:
                digest.update(program.read(entry, shape, field))
            with program.state("kv") as kv:
                digest.update(kv[len(kv) // program.units :])
            for name in ("history", "last_token"):
                with program.state(name) as state:
                    digest.update(state)
            if digest.hexdigest() != replay["digest"]:
                different.append([step, entry, shape])
    maps = Path("/proc/self/maps").read_text()
    libraries = [name for name in ("libtorch", "libc10", "libcuda", "libcudart") if name in maps]
    modules = sorted({"torch", "numpy"} & sys.modules.keys())
    print(
        json.dumps(
            {"replays": step + 1, "different": different[:10], "count": len(different)}
            | {"libraries": libraries, "modules": modules, "loadable": find_torch()}
        )
    )


def find_torch() -> bool:
    from importlib.util import find_spec

    return find_spec("torch") is not None


if __name__ == "__main__":
    main(*sys.argv[1:])
