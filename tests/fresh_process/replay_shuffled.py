"""Loads a core and replays every bucket again and again in shuffled order, each time with other inputs.

    python replay_shuffled.py CORE SEED TIMES UNITS

The last line is JSON: a digest for each replay, what is in this process, and whether the self-tests pass afterwards.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from shuffled import plan, replay_inputs, result_digest

from heliograph.core.policy import Policy
from heliograph.core.verify import verify
from heliograph.runtime.load import load
from heliograph.runtime.program import Program


def replay(program: Program, entry: str, shape: Mapping[str, int], number: int) -> str:
    program.reset()
    for field, data in replay_inputs(entry, shape, number).items():
        program.write(entry, shape, field, data)
    program.run(entry, **shape)
    names = sorted(field.name for field in program.fields(entry, shape).outputs)
    outputs = [program.read(entry, shape, name) for name in names]
    with program.state("kv") as kv, program.state("seen") as seen:
        return result_digest(outputs, kv, seen)


def main(core: str, seed: str, times: str, units: str) -> None:
    with verify(Path(core), Policy.local()) as verified, load(verified, units=int(units)) as program:
        shapes = [(name, dict(b.shape)) for name, entry in program.entries.items() for b in entry.buckets]
        digests = {key: replay(program, *work) for key, work in plan(shapes, int(seed), int(times))}
        passed = [program.self_test(graph) for graph in range(len(program.core.graphs))]
    maps = Path("/proc/self/maps").read_text()
    print(
        json.dumps(
            {
                "digests": digests,
                "passed": passed,
                "modules": sorted({"torch", "numpy"} & sys.modules.keys()),
                "libraries": [name for name in ("libtorch", "libc10", "libcuda", "libcudart") if name in maps],
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
