"""Captures a model on the GPU, replays it here, and says what came out. A process of its own, with torch.

Reads one JSON object: factory, arguments, cores, retain, exact, replays (a bucket), templates, options of ``capture``.
Writes the plan of replays beside the core, and prints one JSON object last.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import torch
from blake3 import blake3
from torch import nn

from gpu.described import described
from gpu.eager import Eager
from heliograph.capture import Recording, capture
from heliograph.capture.again import Again
from heliograph.capture.environment import start_in_fixed_environment
from heliograph.capture.examples import example
from heliograph.capture.storages import TORCH_DTYPES
from heliograph.core.templates import KernelNode, Node


def plan(recording: Recording, replays: int) -> list[tuple[str, dict[str, int], dict[str, bytes]]]:
    """Every bucket ``replays`` times, shuffled, each time with other inputs."""
    spec, steps = recording.spec, []
    for entry in spec.entries:
        for bucket in entry.buckets:
            for seed in range(replays):
                steps.append((entry.name, dict(bucket), dict(example(spec, entry, bucket, 1000 + seed).inputs)))
    random.Random(1).shuffle(steps)
    return steps


def replayed(
    recording: Recording, model: nn.Module, steps: list[tuple[str, dict[str, int], dict[str, bytes]]]
) -> dict[str, Any]:
    """Every step as a graph and by the model without one. ``digests``: of outputs and state after each, as replays by
    other processes are digested; ``outputs``: how many different ones each bucket gave; ``eager``: where the two differ
    and where a result is no number. Left out is the first unit of growing state, which padding rows share."""
    digests, different, nans = [], [], []
    outputs: dict[str, set[str]] = {}
    states = sorted(recording.spec.state.items(), key=lambda item: item[1].grows)
    begin = time.perf_counter()
    with Eager(model, recording) as eager:
        for number, (entry, shape, inputs) in enumerate(steps):
            for field, data in inputs.items():
                recording.write(entry, shape, field, data)
            recording.run(entry, **shape)
            graph = recording._graph(entry, shape)
            placed = {output.name: recording.buffers.all[output.buffer] for output in graph.placed.outputs}
            found = {name: recording.read(entry, shape, name) for name in placed}
            outputs.setdefault(graph.name, set()).add(blake3(b"".join(found.values())).hexdigest())
            digest = blake3(b"".join(found.values()))
            wanted = eager.run(entry, shape, inputs)
            nans += [f"step {number}, {graph.name} {name}" for name in found if _nan(found[name], placed[name].dtype)]
            for name, state in states:
                found[name] = recording.read_state(name)
                digest.update(found[name])
                index = recording.buffers.find(f"state/{name}")
                shared = recording.buffers.all[index].size if state.grows and index is not None else 0
                found[name], wanted[name] = found[name][shared:], eager.state(name)[shared:]
            digests.append(digest.hexdigest())
            different += [
                f"step {number}, {graph.name} {name}: {_differing(found[name], wanted[name])}"
                for name in found
                if found[name] != wanted[name]
            ]
    told = {"different": len(different), "first": different[:5], "nan": nans[:5], "steps": len(digests)}
    return {
        "digests": digests,
        "outputs": {name: len(seen) for name, seen in outputs.items()},
        "eager": told | {"seconds": time.perf_counter() - begin},
    }


def _nan(data: bytes, dtype: str) -> bool:
    kind = TORCH_DTYPES[dtype]
    return kind.is_floating_point and bool(torch.frombuffer(bytearray(data), dtype=kind).isnan().any())


def _differing(one: bytes, two: bytes) -> str:
    if len(one) != len(two):
        return f"{len(one)} and {len(two)} bytes"
    pair = (torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in (one, two))
    places = torch.ne(*pair).nonzero().flatten()
    return f"{len(places)} of {len(one)} bytes, from {int(places[0])} on"


def _told(recording: Recording, node: Node) -> dict[str, object]:
    """A node for a test to look at."""
    if not isinstance(node, KernelNode):
        return {"name": type(node).__name__, "line": node.origin, "refs": []}
    function = recording.kernels.functions[node.function]
    image = recording.kernels.images[function.image]
    names = [(ref.at, recording.buffers.all[ref.buffer].name, ref.offset) for ref in node.refs]
    attrs = [(number, value.hex()) for number, value in node.attrs]
    return {
        "name": function.name,
        "origin": image.origin,
        "line": node.origin,
        "refs": names,
        "form": node.form,
        "attrs": attrs,
    }


def prepare(request: dict[str, Any]) -> dict[str, Any]:
    """Captures as the request says; what there is to tell."""
    again = Again(request["factory"], tuple(request.get("arguments", ())))
    model, spec = again.make()
    said: dict[str, Any] = {}
    steps_file = Path(request["cores"]) / "plan"

    def study(recording: Recording) -> None:
        said["counters"] = recording.device.counters()
        said["functions"] = [
            (recording.kernels.images[function.image].origin, function.name) for function in recording.kernels.functions
        ]
        said["nodes"] = {graph.name: len(graph.nodes) for graph in recording.graphs}
        said["graphs"] = {graph.name: [_told(recording, node) for node in graph.nodes] for graph in recording.graphs}
        lines = [node.origin for graph in recording.graphs for node in graph.nodes]
        said["attributed"] = sum(line != "-" for line in lines) / len(lines)
        if request.get("templates"):
            said["templates"] = {graph.name: described(graph.graph.template) for graph in recording.graphs}
        said["flags"] = [graph.graph.encoder_flags() for graph in recording.graphs]
        said["kept"] = {role: [[at, len(data)] for at, data in kept] for role, kept in recording.kept.items()}
        said["origins"] = [graph.nodes[len(graph.nodes) // 2].origin for graph in recording.graphs]
        said["costs"] = [graph.graph.costs.device_bytes for graph in recording.graphs]
        said["regions"] = dict(recording.arena.sizes)
        if request.get("retain") == "executable":
            steps = plan(recording, request.get("replays", 3))
            steps_file.write_bytes(msgspec.msgpack.encode([spec.units, steps]))
            said.update(replayed(recording, model, steps))

    start = time.perf_counter()
    core = capture(
        model,
        spec,
        cores=Path(request["cores"]),
        device="cuda",
        again=again if request.get("exact", True) else None,
        retain=request.get("retain", "template"),
        study=study,
        progress=lambda doing, done, total: print(doing, file=sys.stderr) if not total else None,
        **request.get("options", {}),
    )
    said |= {"core": str(core), "seconds": time.perf_counter() - start, "torch": torch.__version__}
    return said


if __name__ == "__main__":
    start_in_fixed_environment()
    print(json.dumps(prepare(json.loads(sys.stdin.read()))))
