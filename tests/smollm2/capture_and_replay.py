"""Captures SmolLM2 with its executables kept, replays every bucket in the capturing process, then writes the core.

    python capture_and_replay.py MODEL FOLDER TIMES

FOLDER gets the core, ``plan.json`` (the order of replays with the digest of each) and the inputs of each replay. The
state is carried from replay to replay, so each digest depends on everything before it. The last line is JSON: also how
many outputs each bucket gave that differ, and which outputs hold a NaN.
"""

from __future__ import annotations

import json
import random
import sys
from collections import defaultdict
from pathlib import Path

import torch
from blake3 import blake3

from heliograph.capture import capture, record
from heliograph.capture.recording import Recording
from heliograph.device.host import open_host
from heliograph.models.load import load_model

SEED = 2026


def replay(recording: Recording, folder: Path, times: int) -> tuple[list[dict[str, object]], dict[str, object]]:
    spec = recording.spec
    order = [(entry.name, dict(shape), n) for entry in spec.entries for shape in entry.buckets for n in range(times)]
    random.Random(SEED).shuffle(order)
    plan: list[dict[str, object]] = []
    given: dict[str, set[str]] = defaultdict(set)
    nan: list[str] = []
    for step, (entry, shape, number) in enumerate(order):
        example = spec.examples(entry, shape, 1000 + number) if spec.examples else None
        if example is None:
            raise SystemExit("the spec has no examples")
        with (folder / f"{step}.inputs").open("wb") as file:
            for field, data in example.inputs.items():
                recording.write(entry, shape, field, data)
                file.write(data)
        recording.run(entry, **shape)
        digest = blake3()
        for field in OUTPUTS:
            output = recording.read(entry, shape, field)
            digest.update(output)
            if field in FLOATS and torch.frombuffer(bytearray(output), dtype=torch.float32).isnan().any():
                nan.append(f"{field} of {entry} {shape}, replay {step}")
        given[f"{entry} {shape}"].add(digest.hexdigest())  # of the outputs alone
        kv = recording.read_state("kv")
        digest.update(memoryview(kv)[len(kv) // spec.units :])  # block 0 is padding
        digest.update(recording.read_state("history"))
        digest.update(recording.read_state("last_token"))
        fields = {field: len(data) for field, data in example.inputs.items()}
        plan.append({"entry": entry, "shape": shape, "inputs": fields, "digest": digest.hexdigest()})
    return plan, {"outputs": {bucket: len(digests) for bucket, digests in given.items()}, "nan": nan}


OUTPUTS = ("sampled", "accepted", "logprobs", "logprob_ids", "logits")
FLOATS = ("logprobs", "logits")  # f32


def main(model: str, folder: str, times: str) -> None:
    target = Path(folder)
    loaded = load_model(Path(model))
    device = open_host()
    with record(loaded.model, loaded.spec, device=device, retain="executable") as recording:
        plan, given = replay(recording, target, int(times))
        executables = device.counters()["executables_created"]
    device.close()
    core = capture(loaded.model, loaded.spec, cores=target / "cores", consume=True)
    (target / "plan.json").write_text(
        json.dumps({"core": str(core), "units": loaded.spec.units, "outputs": OUTPUTS, "replays": plan})
    )
    print(json.dumps({"core": str(core), "executables": executables, "replays": len(plan), **given}))


if __name__ == "__main__":
    main(*sys.argv[1:])
