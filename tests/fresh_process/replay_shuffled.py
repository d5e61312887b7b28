"""Loads a core and replays every bucket again and again in shuffled order, each time with other inputs.

    python replay_shuffled.py CORE PUBLIC_KEY SEED TIMES

Every replay starts from zero state, so its result depends on its inputs alone. The last line is JSON: a digest for
each replay, what is in this process, and how it was loaded.
"""

from __future__ import annotations

import json
import random
import struct
import sys
from pathlib import Path

from blake3 import blake3

from heliograph.core.policy import Policy
from heliograph.core.verify import verify
from heliograph.runtime.load import load
from heliograph.runtime.program import Program


def replay(program: Program, rows: int, number: int) -> str:
    """One replay with inputs that its bucket and number decide; the digest of all outputs and the whole state."""
    shape = {"rows": rows}
    values = random.Random(f"{rows} {number}")
    columns = program.buffer("step", shape, "x").shape[1]
    x = struct.pack(f"<{rows * columns}f", *(values.uniform(-1, 1) for _ in range(rows * columns)))
    ids = values.sample(range(1, program.units), rows)
    program.reset()
    program.write("step", shape, "x", x)
    program.write("step", shape, "ids", struct.pack(f"<{rows}i", *ids))
    program.run("step", **shape)
    digest = blake3()
    for field in ("out", "sum"):
        digest.update(program.read("step", shape, field))
    for name in ("total", "cache"):
        with program.state(name) as state:
            digest.update(state)
    return digest.hexdigest()


def replays(program: Program, seed: int, times: int) -> dict[str, str]:
    """``times`` replays of every bucket in an order that the seed decides."""
    plan = [(dict(b.shape)["rows"], n) for b in program.entries["step"].buckets for n in range(times)]
    random.Random(seed).shuffle(plan)
    return {f"{rows}/{number}": replay(program, rows, number) for rows, number in plan}


def main(core: str, key: str, seed: str, times: str) -> None:
    with verify(Path(core), Policy.only(bytes.fromhex(key))) as verified, load(verified) as program:
        digests = replays(program, int(seed), int(times))
    maps = Path("/proc/self/maps").read_text()
    print(
        json.dumps(
            {
                "digests": digests,
                "modules": sorted({"torch", "numpy"} & sys.modules.keys()),
                "libraries": [name for name in ("libtorch", "libc10", "libcuda", "libcudart") if name in maps],
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
