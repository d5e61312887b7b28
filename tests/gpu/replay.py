"""Loads a core in a process that cannot import torch, replays the plan beside it, prints a JSON object with digests."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import msgspec
from blake3 import blake3

import gpu.no_torch  # noqa: F401
from heliograph.core.policy import Policy
from heliograph.core.verify import verify
from heliograph.runtime.load import load


def main(core: Path, plan: Path | None, wanted: str = "") -> None:
    begin = time.perf_counter()
    said: dict[str, object] = {}
    digests = []
    units, steps = msgspec.msgpack.decode(plan.read_bytes()) if plan else (0, [])
    with verify(core, Policy.local()) as verified:
        program = load(verified, ready="all", units=units or None)
    with program:
        said["ready"] = time.perf_counter() - begin
        said["phases"] = {name: spent / 1e6 for name, spent in program.phases.items()}
        said["budget"] = program._loaded.plan.budget
        ready = program._loaded.device.counters()
        states = sorted(
            (buffer for buffer in program.core.buffers if buffer.role == "state"), key=lambda buffer: buffer.grows
        )
        for entry, shape, inputs in steps:
            for field, data in inputs.items():
                program.write(entry, shape, field, data)
            program.run(entry, **shape)
            digest = blake3()
            for field in program.fields(entry, shape).outputs:
                digest.update(program.read(entry, shape, field.name))
            for buffer in states:
                size = buffer.size * (program.units if buffer.grows else 1)
                digest.update(program._loaded.memory.read("state", buffer.offset, size))
            digests.append(digest.hexdigest())
        if wanted:
            entry, shape, field = json.loads(wanted)
            said["output"] = program.read(entry, shape, field).hex()
        after = program._loaded.device.counters()
        said["after_ready"] = {name: after[name] - ready[name] for name in ("modules_loaded", "bytes_mapped")}
        said["counters"] = after
    maps = Path("/proc/self/maps").read_text()
    said |= {"digests": digests, "process": os.getpid()}
    print(json.dumps(said | {"torch": "libtorch" in maps, "cupti": "libcupti" in maps}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None, *sys.argv[3:])
