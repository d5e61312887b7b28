"""Loads a language model's core with a number of blocks, and generates with a sequence's blocks at several places:
python units.py CORE UNITS (0: what a load chooses). No torch. Prints digests of the steps' outputs and of blocks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from blake3 import blake3

import gpu.no_torch  # noqa: F401
from heliograph.core.policy import Policy
from heliograph.core.verify import verify
from heliograph.runtime.load import load
from heliograph.runtime.program import Program
from heliograph.runtime.sampling import Sampling
from heliograph.runtime.steps import Steps

PROMPT = [(7 * number + 3) % 40 for number in range(40)]
TOKENS = 20
BLOCKS = 4  # that prompt and tokens fill


def generated(program: Program, blocks: list[int]) -> dict[str, object]:
    """Everything zero before; the digest of what each step gave, and of what lies in the blocks behind it."""
    program.reset()
    steps, told = blake3(), blake3()

    def outputs(entry: str, shape: dict[str, int]) -> None:
        for field in program.fields(entry, shape).outputs:
            steps.update(program.read(entry, shape, field.name))

    tokens = []
    with Steps(program) as run:
        seat = run.seat(0, blocks, Sampling(temperature=0.8, seed=11, logprobs=5))
        tokens.append(run.prefill(64, seat, PROMPT, 0))
        outputs("prefill", {"tokens": 64})
        for position in range(len(PROMPT), len(PROMPT) + TOKENS - 1):
            tokens += run.decode(1, [seat], tokens[-1:], [position])
            outputs("decode", {"rows": 1})
    region = next(region for region in program.core.regions if region.grow)
    written = True
    for block in blocks:
        data = program._loaded.memory.read("state", region.grow_at + block * region.grow, region.grow)
        written = written and any(data)
        told.update(data)
    return {"steps": steps.hexdigest(), "blocks": told.hexdigest(), "written": written, "tokens": tokens}


def main(core: Path, units: int) -> None:
    with verify(core, Policy.local()) as verified:
        program = load(verified, ready="all", units=units or None)
    with program:
        device = program._loaded.device
        ready, end = device.counters(), program.units
        places = {
            "first": [1, 2, 3, 4],
            "last": list(range(end - BLOCKS, end)),
            "scattered": [end - 1, 1, end // 2, 2],
        }
        unit = next(region.grow for region in program.core.regions if region.grow)
        told = {
            "units": end,
            "unit bytes": unit,
            "pool bytes": unit * end,
            "places": {name: generated(program, blocks) for name, blocks in places.items()},
        }
        after = device.counters()
        told["after_ready"] = {name: after[name] - ready[name] for name in ("modules_loaded", "bytes_mapped")}
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
