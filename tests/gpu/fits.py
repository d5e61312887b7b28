"""Loads a core if it fits, as serve and generate do: buckets are built before their first run. Replays the plan, builds
what is left, and replays the plan again: python fits.py CORE PLAN UNITS MEMORY (0: all there is). No torch.

Prints one JSON object: "refused" with the error's numbers and what had been taken by then, or the "digests" of both.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import msgspec
from blake3 import blake3

import gpu.no_torch  # noqa: F401
from heliograph.core.policy import Policy
from heliograph.core.verify import verify
from heliograph.device.cuda import open_cuda
from heliograph.errors import OutOfMemoryError
from heliograph.runtime.load import load
from heliograph.runtime.program import Program


def main(core: Path, plan: Path, units: int, memory: int) -> None:
    device = open_cuda(compiles=False)
    free = device.free_bytes or 0
    said: dict[str, object] = {"free": free}
    begin = time.perf_counter()
    with verify(core, Policy.local()) as verified:
        try:
            program = load(verified, device=device, units=units or None, memory=memory or None, ready=())
        except OutOfMemoryError as error:
            counters = device.counters()
            said |= {"refused": f"{error.found}; {error.required}", "hint": error.hint}
            said["taken"] = {name: counters[name] for name in ("bytes_mapped", "modules_loaded", "pinned_bytes")}
            program = None
    said["seconds"] = time.perf_counter() - begin
    if program is not None:
        figures = program._loaded.plan
        said |= {
            "needed": figures.needed,
            "margin": figures.margin,
            "budget": figures.budget,
            "units": figures.units,
            "executables": figures.executables,
            "overhead": figures.overhead.total,
        }
        said["weights"] = {"read and copied": program.staged.bytes_read, "size": program.core.weights.size}
        steps = msgspec.msgpack.decode(plan.read_bytes())[1] if units else []
        loaded, said["free when loaded"] = device.counters(), device.free_bytes
        first = replayed(program, steps)
        for name, entry in program.entries.items():
            for bucket in entry.buckets:
                program.prepare(name, **dict(bucket.shape))
        built = device.free_bytes or 0
        program.reset()
        said["digests"] = [first, replayed(program, steps)]
        after = device.counters()
        said["after load"] = {name: after[name] - loaded[name] for name in ("modules_loaded", "bytes_mapped")}
        said["taken when built"] = free - built
        said["taken after that"] = built - (device.free_bytes or 0)
        program.close()
    device.close()
    print(json.dumps(said))


def replayed(program: Program, steps: list[tuple[str, dict[str, int], dict[str, bytes]]]) -> list[str]:
    """As replay.py digests what the steps give."""
    states = sorted((buffer for buffer in program.core.buffers if buffer.role == "state"), key=lambda each: each.grows)
    digests = []
    for entry, shape, inputs in steps:
        for field, data in inputs.items():
            program.write(entry, shape, field, data)
        program.run(entry, **shape)
        digest = blake3()
        for output in program.fields(entry, shape).outputs:
            digest.update(program.read(entry, shape, output.name))
        for buffer in states:
            size = buffer.size * (program.units if buffer.grows else 1)
            digest.update(program._loaded.memory.read("state", buffer.offset, size))
        digests.append(digest.hexdigest())
    return digests


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
