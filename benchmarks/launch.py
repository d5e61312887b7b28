"""What a node costs beyond its kernel: empty bodies that count, at 1 and 2 workers.

    python benchmarks/launch.py [--core CORE --graph decode/1] [--nodes 1100] [--blocks 8] [--runs 15] [--replays 100]

Without a core the graph is a chain of nodes of a few blocks each, as a decode step records them: every node waits for
the one before it. With a core it is a recorded graph of it, nodes, blocks and edges, with empty bodies. The cost is the
wall time of launch and wait divided by the nodes, so launching and waking the workers is in it; the counter must equal
nodes x replays. Each run takes 1 and 2 workers in alternating order. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from _judge import BUSY, SPREAD, busy_share, spread
from _machine import machine

from heliograph._native import SealedImage
from heliograph.core.policy import Policy
from heliograph.core.templates import EmptyNode, KernelNode, decode_catalogue
from heliograph.core.verify import verify
from heliograph.device.host import kernel_image, open_host

BAR_US = 0.5
BASE = 0x1601_0000_0000
WORKERS = (1, 2)


@dataclass(frozen=True, slots=True)
class Shape:
    """A graph to measure: blocks of each node (0: an empty node), and for each the nodes that it waits for."""

    name: str
    blocks: tuple[int, ...]
    after: tuple[tuple[int, ...], ...]

    @property
    def counted(self) -> int:
        return sum(1 for blocks in self.blocks if blocks)


def chain(nodes: int, blocks: int) -> Shape:
    return Shape(
        f"chain of {nodes} nodes of {blocks} blocks", (blocks,) * nodes, ((), *((i,) for i in range(nodes - 1)))
    )


def recorded(path: Path, name: str) -> Shape:
    """A graph of a core; memsets and copies become nodes of one block."""
    with verify(path, Policy.local()) as verified:
        names = [graph.name for graph in verified.core.graphs]
        if name not in names:
            sys.exit(f"{path.name} has no graph {name}; it has {', '.join(names)}")
        graph = decode_catalogue(verified.columns)[names.index(name)]
    blocks = (
        node.grid[0] if isinstance(node, KernelNode) else 0 if isinstance(node, EmptyNode) else 1
        for node in graph.nodes
    )
    after: list[list[int]] = [[] for _ in graph.nodes]
    for edge in graph.edges:
        after[edge.target].append(edge.source)
    return Shape(f"{name} of {path.name}", tuple(blocks), tuple(map(tuple, after)))


@dataclass(frozen=True, slots=True)
class Sample:
    node_us: float  # the median replay, over all nodes
    counted: int
    expected: int
    helper_share: float  # processor time of the second worker over wall time


def helper_seconds() -> float:
    """Processor time of the workers that help the stream's own thread."""
    tasks = [task for task in Path("/proc/self/task").iterdir() if (task / "comm").read_text().startswith("hg-worker")]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def measure(shape: Shape, workers: int, replays: int) -> Sample:
    device = open_host(workers=workers)
    memory = device.reserve(BASE, 1 << 20)
    memory.map(0, 4096)
    tick = device.load_module(SealedImage("probe", kernel_image("generic", "probe"))).function("tick")
    params = struct.pack("<Q", BASE)
    template = device.create_template()
    for blocks, after in zip(shape.blocks, shape.after, strict=True):
        if blocks:
            template.add_kernel(tick, (blocks, 1, 1), params, after)
        else:
            template.add_empty(after)
    executable, stream = template.instantiate(), device.create_stream()
    executable.launch(stream)
    stream.synchronize()
    helper, begun, times = helper_seconds(), time.perf_counter(), []
    for _ in range(replays):
        start = time.perf_counter_ns()
        executable.launch(stream)
        stream.synchronize()
        times.append(time.perf_counter_ns() - start)
    share = (helper_seconds() - helper) / (time.perf_counter() - begun)
    counted = int.from_bytes(memory.read(0, 8), "little")
    executable.close()
    memory.close()
    device.close()
    return Sample(
        statistics.median(times) / len(shape.blocks) / 1e3, counted, shape.counted * (replays + 1), round(share, 2)
    )


def report(shape: Shape, samples: dict[int, list[Sample]], arguments: argparse.Namespace, busy: float) -> bool:
    costs = {workers: statistics.median(s.node_us for s in taken) for workers, taken in samples.items()}
    spreads = {workers: spread([s.node_us for s in taken]) for workers, taken in samples.items()}
    counts = all(s.counted == s.expected for taken in samples.values() for s in taken)
    slower = max(costs, key=lambda workers: costs[workers])
    worst = costs[slower]
    valid = spreads[slower] <= SPREAD and busy <= BUSY  # of the side that is judged; the other one is printed
    for workers, cost in costs.items():
        print(f"{workers} worker(s): {cost:.3f} us a node, interquartile spread {spreads[workers]:.1%}")
    print(
        json.dumps(
            {
                "benchmark": "launch",
                "metric": "microseconds a node beyond its kernel, the worse of 1 and 2 workers",
                "ours": round(worst, 4),
                "peer": None,
                "bar": BAR_US,
                "ratio": round(worst / BAR_US, 4),
                "ok": worst <= BAR_US and counts,
                "valid": valid,
                "measures": {str(workers): [round(s.node_us, 4) for s in taken] for workers, taken in samples.items()},
                "spread": {str(workers): round(value, 4) for workers, value in spreads.items()},
                "counter": "nodes x replays in every run" if counts else "WRONG",
                "helper_share": [s.helper_share for s in samples[2]],
                "graph": shape.name,
                "nodes": len(shape.blocks),
                "replays": arguments.replays,
                "threads": list(WORKERS),
                "pinning": "none",
                "load": {"average": os.getloadavg()[0], "busy_share_at_start": round(busy, 3)},
                "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
                **machine(),
            }
        )
    )
    return bool(worst <= BAR_US and counts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--core", type=Path)
    parser.add_argument("--graph", default="decode/1")
    parser.add_argument("--nodes", type=int, default=1100)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--replays", type=int, default=100)
    arguments = parser.parse_args()
    busy = busy_share()
    shape = recorded(arguments.core, arguments.graph) if arguments.core else chain(arguments.nodes, arguments.blocks)
    samples: dict[int, list[Sample]] = {workers: [] for workers in WORKERS}
    for number in range(max(4, arguments.runs)):
        for workers in WORKERS if number % 2 == 0 else WORKERS[::-1]:
            samples[workers].append(measure(shape, workers, arguments.replays))
    return 0 if report(shape, samples, arguments, busy) else 1


if __name__ == "__main__":
    sys.exit(main())
