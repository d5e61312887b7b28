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

from gpu.described import described
from heliograph.capture import Recording, capture
from heliograph.capture.again import Again
from heliograph.capture.environment import start_in_fixed_environment
from heliograph.capture.examples import example
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


def replayed(recording: Recording, steps: list[tuple[str, dict[str, int], dict[str, bytes]]]) -> list[str]:
    """The digest of outputs and fixed state after each replay."""
    found = []
    fixed = [name for name, state in recording.spec.state.items() if not state.grows]
    grown = [name for name, state in recording.spec.state.items() if state.grows]
    for entry, shape, inputs in steps:
        for field, data in inputs.items():
            recording.write(entry, shape, field, data)
        recording.run(entry, **shape)
        graph = recording._graph(entry, shape)
        digest = blake3()
        for output in graph.placed.outputs:
            digest.update(recording.read(entry, shape, output.name))
        for name in (*fixed, *grown):
            digest.update(recording.read_state(name))
        found.append(digest.hexdigest())
    return found


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
            said["digests"] = replayed(recording, steps)

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
