"""What the exact census costs on a GPU, and what range mode would have got wrong, for each model.

    python benchmarks/gpu_costs.py [MODEL ...] [--runs 3]

MODEL is a GGUF file or Hugging Face folder (our Llama), or path/to/file.py:function with arguments behind commas;
default: the small decoder and the transformers Llama of examples/. Each is captured twice, as `heliograph capture`
does: in a process of its own in the next slot, and here. Printed: the time of both captures and of both ways to tell
words apart, the pointers that range mode sees and are none (false alarms), and those that it does not see (missed),
what is ambiguous and what is left over. Nothing is barred: bar is null. Medians over the runs; an interquartile spread
above 15 %, or a machine that other work keeps busy, makes the run invalid. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from _judge import busy_share, invalid, print_result, spread
from _machine import ROOT, machine

MODELS = (f"{ROOT / 'examples' / 'decoder.py'}:make,small", f"{ROOT / 'examples' / 'hf_llama.py'}:make")


# ---- one model, in a process of its own ------------------------------------------------------------------------------
def census_of(model: str) -> dict[str, object]:
    from heliograph.capture.again import Again, second_capture  # noqa: PLC0415 - the parent needs no torch
    from heliograph.capture.census import compare_modes, exact_census, range_census  # noqa: PLC0415
    from heliograph.capture.cuda.record import CudaCapture  # noqa: PLC0415
    from heliograph.capture.cuda.session import CudaSession  # noqa: PLC0415
    from heliograph.capture.owned import Owned  # noqa: PLC0415

    factory, *arguments = model.split(",")
    if ".py:" not in factory:
        factory, arguments = "heliograph.models.load_cuda:make", [factory]
    again, seconds = Again(factory, tuple(arguments)), Times()
    made, spec = again.make()
    with seconds("second capture"):
        second = second_capture(again, spec.slot)
    with seconds("first capture"):
        run = CudaCapture(made, spec, CudaSession(spec.slot), lambda doing, done, total: None)
        run.capture("template", 0)
        first = run.words()
        owned = Owned(run.walk.buffers.all, spec.slot, spec.units)
    with seconds("variables of images"):
        run.known(0)  # the first question makes the table of them
    with seconds("exact census"):
        exact = exact_census(first, second, owned, run.known)
    with seconds("range census"):
        ranged = range_census(first, owned, run.known)
    alarms, missed = compare_modes(exact.graphs, ranged.graphs)
    nodes = [node for graph in exact.graphs for node in graph]
    told = {
        "model": spec.model,
        "graphs": len(exact.graphs),
        "nodes": len(nodes),
        "pointers": sum(len(node.refs) for node in nodes),
        "classes": exact.classes,
        "left-over bytes": exact.zeroed_bytes,
        "ambiguous": {"exact": len(exact.doubts), "range": len(ranged.doubts)},
        "range mode": {"false alarms": alarms, "missed": missed},
        "seconds": seconds.taken,
    }
    print("\n".join([*exact.lines(), *ranged.lines()]), file=sys.stderr)
    run.close()
    return told


class Times:
    """Wall time of parts, in seconds."""

    def __init__(self) -> None:
        self.taken: dict[str, float] = {}
        self._name, self._start = "", 0.0

    def __call__(self, name: str) -> Times:
        self._name = name
        return self

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self.taken[self._name] = round(time.perf_counter() - self._start, 3)


# ---- all of them -----------------------------------------------------------------------------------------------------
def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.one:
        from heliograph.capture.environment import private_triton_cache, start_in_fixed_environment  # noqa: PLC0415

        start_in_fixed_environment()
        with private_triton_cache():
            print(json.dumps(census_of(given.models[0])))
        return 0
    busy = busy_share()
    found = {model: [once(model) for _ in range(max(2, given.runs))] for model in given.models}
    return 0 if report(found, busy) else 1


def once(model: str) -> dict[str, Any]:
    ended = subprocess.run([sys.executable, __file__, "--one", model], check=True, stdout=subprocess.PIPE, text=True)
    said: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return said


def report(found: Mapping[str, Sequence[Mapping[str, Any]]], busy: float) -> bool:
    """``found``: by model, what its runs said."""
    spreads = {}
    models = []
    for model, runs in found.items():
        times = [times_one_capture(run["seconds"]) for run in runs]
        seconds = {
            part: round(statistics.median(run["seconds"][part] for run in runs), 3) for part in runs[0]["seconds"]
        }
        said = {**runs[0], "seconds": seconds, "times one capture": round(statistics.median(times), 2)}
        spreads[model] = spread(times)
        said |= {"samples": [run["seconds"] for run in runs], "spread": round(spreads[model], 4)}
        models.append(said)
        print(f"{said['model']}: {said['graphs']} graphs, {said['nodes']} nodes, {said['pointers']} pointers")
        print(f"  {seconds}; the exact census takes {said['times one capture']} times one capture")
        print(f"  range mode: {said['range mode']}, ambiguous {said['ambiguous']}")
    return print_result(
        metric="captures with an exact census, in times of one capture",
        ours=max(said["times one capture"] for said in models),
        peer=1.0,
        bar=None,
        ok=True,
        problems=invalid(spreads, busy),
        models=models,
        load_at_start=round(busy, 3),
        **machine(),
    )


def times_one_capture(seconds: Mapping[str, float]) -> float:
    first = seconds["first capture"]
    return (first + seconds["second capture"] + seconds["exact census"]) / first


if __name__ == "__main__":
    sys.exit(main())
