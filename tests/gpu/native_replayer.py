"""A replayer in the preparing process that takes a live executable and launches it by itself: native code that knows
nothing but the driver, in a thread and on a stream of its own (tests/replayer.cpp). It drains itself; one that forgets
keeps the graph from being reset. Prints one JSON object."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from heliograph.capture import Recording, capture
from heliograph.capture.again import Again
from heliograph.capture.environment import start_in_fixed_environment
from heliograph.capture.examples import example
from heliograph.device.graph import Lease
from heliograph.errors import GraphStateError, HeliographError
from replayer import Replayer

LAUNCHES = 50
SHAPE = {"rows": 8}


def study(recording: Recording, told: dict[str, object]) -> None:
    entry = recording.spec.entries[0]
    graph = recording._graph("step", SHAPE).graph
    for field, data in example(recording.spec, entry, SHAPE, 7).inputs.items():
        recording.write("step", SHAPE, field, data)

    def once(run: Callable[[], None]) -> list[bytes]:
        """Outputs and state after as many launches, from the same beginning."""
        recording.write("step", SHAPE, "scores", bytes(len(recording.read("step", SHAPE, "scores"))))
        recording.write_state("total", bytes(len(recording.read_state("total"))))
        run()
        return [recording.read("step", SHAPE, "scores"), recording.read_state("total")]

    def by_graph() -> None:
        for _ in range(LAUNCHES):
            recording.run("step", **SHAPE)

    def by_replayer() -> None:
        lease = graph.lease()
        replayer = Replayer(lease.executable.handle, LAUNCHES)
        told["reset while it launches"] = _refused(graph.reset)
        replayer.stop()
        lease.drain()
        told["used after the drain"] = _refused(lambda: lease.executable)

    def launches() -> int:
        return recording.device.counters()["launches"]

    wanted, before = once(by_graph), launches()
    told["numbers"] = [any(data) for data in wanted]
    told["same"] = [found == data for found, data in zip(once(by_replayer), wanted, strict=True)]
    told["launches of ours"] = launches() - before
    forgotten = graph.lease()
    forgotten.executable.launch(recording.stream)
    told["forgotten"] = _refused(graph.reset)
    told["still recorded"] = graph.recorded and graph.costs.executables == 1
    forgotten.drain()


def _refused(make: Callable[[], object]) -> str:
    try:
        make()
    except GraphStateError as error:
        return str(error)
    return "not refused"


def main(cores: Path) -> None:
    told: dict[str, object] = {}
    again = Again(f"{Path(__file__).with_name('factories.py')}:wide")  # its outputs do not depend on earlier launches
    model, spec = again.make()
    core = capture(
        model, spec, cores=cores, device="cuda", retain="executable", study=lambda recording: study(recording, told)
    )
    told["core"] = str(core)
    print(json.dumps(told))


def forget(cores: Path) -> None:
    """The lease is out when the capture ends."""
    again = Again(f"{Path(__file__).with_name('factories.py')}:mlp")
    model, spec = again.make()
    held: list[tuple[Recording, Lease]] = []

    def lend(recording: Recording) -> None:
        held.append((recording, recording.graphs[0].graph.lease()))

    try:
        capture(model, spec, cores=cores, device="cuda", retain="executable", study=lend)
    except HeliographError as error:
        told = {"refused": f"{type(error).__name__}: {error}", "cores": [path.name for path in cores.iterdir()]}
    else:
        told = {"refused": "", "cores": []}
    for recording, lease in held:
        lease.drain()
        recording.release()
    print(json.dumps(told))


if __name__ == "__main__":
    start_in_fixed_environment()
    {"drains": main, "forgets": forget}[sys.argv[1]](Path(sys.argv[2]))
