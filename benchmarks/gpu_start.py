"""From process start to the first result on a GPU, by phase, ours beside PyTorch.

    python benchmarks/gpu_start.py [CORE] [--runs 5] [--size large] [--context 256]

The model is examples/decoder.py: 1.4 B parameters, plain PyTorch, cuBLAS and cuDNN; CORE is captured from it unless
one is given. Ours: verify, load with self-tests of the first buckets, fill a decode step's inputs, replay, read the
result. "ours, all": the same with every graph built and self-tested before, as many as PyTorch captures. PyTorch:
import, read the same weights from a safetensors file straight to the device, run every bucket once, capture the same
graphs, replay, read. The parent starts the clock before exec; sides alternate A B C C B A, page cache warm. All read
the same inputs and must give the same token. Nothing is barred: bar is null. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from _judge import busy_share, invalid, print_result, spread
from _machine import ROOT, machine

EXAMPLE = ROOT / "examples" / "decoder.py"
STEP = {"ids": 17, "positions": 3}


# ---- the two sides, each in a process of its own ---------------------------------------------------------------------
def ours(core: Path, ready: Literal["first", "all"]) -> dict[str, object]:
    from heliograph.core.policy import Policy  # noqa: PLC0415 - each side imports what it needs, inside its time
    from heliograph.core.verify import verify  # noqa: PLC0415
    from heliograph.runtime.load import load  # noqa: PLC0415

    imported = time.time_ns()
    with verify(core, Policy.local()) as verified:
        checked = time.time_ns()
        with load(verified, ready=ready) as program:
            for name, value in STEP.items():
                program.write("decode", {"rows": 1}, name, value.to_bytes(8, "little"))
            program.run("decode", rows=1)
            token = int.from_bytes(program.read("decode", {"rows": 1}, "sampled"), "little")
            done = time.time_ns()
            phases = {"verify": checked - imported, **{f"load/{k}": v for k, v in program.phases.items()}}
            built = program._loaded.device.counters()["executables_created"]
            return {"imported": imported, "done": done, "token": token, "graphs": built, "phases": phases}


def torch_side(weights: Path, size: str, context: str) -> dict[str, object]:
    import torch  # noqa: PLC0415
    from safetensors.torch import load_file  # noqa: PLC0415

    sys.path.insert(0, str(EXAMPLE.parent))
    import decoder  # noqa: PLC0415

    imported = time.time_ns()
    shape = decoder.sized(size, context)
    device = torch.device("cuda")
    with torch.device("meta"):
        model = decoder.Decoder(shape)
    model.load_state_dict(load_file(weights, device="cuda"), assign=True)
    model.register_buffer("frequencies", decoder.frequencies(shape).to(device), persistent=False)
    model.eval().requires_grad_(False)
    torch.cuda.synchronize()
    loaded = time.time_ns()
    spec = decoder.spec(shape, "bf16")
    state = {name: torch.zeros(each.shape, dtype=torch.bfloat16, device=device) for name, each in spec.state.items()}
    inputs = {}
    graphs = {}
    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        for captured in (False, True):
            for entry in spec.entries:
                for bucket in entry.buckets:
                    key = (entry.name, *bucket.values())
                    inputs.setdefault(
                        key,
                        {
                            n: torch.zeros(f.resolve(bucket), dtype=torch.int64, device=device)
                            for n, f in entry.inputs.items()
                        },
                    )
                    if not captured:
                        entry.call(model, **inputs[key], **state)
                        continue
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph, stream=stream):
                        result = entry.call(model, **inputs[key], **state)
                    graphs[key] = (graph, result)
            torch.cuda.synchronize()
            if not captured:
                warm = time.time_ns()
    caught = time.time_ns()
    for each in state.values():
        each.zero_()
    for name, value in STEP.items():
        inputs["decode", 1][name].fill_(value)
    graphs["decode", 1][0].replay()
    token = int(graphs["decode", 1][1]["sampled"].item())
    done = time.time_ns()
    phases = {"weights": loaded - imported, "warm-up": warm - loaded, "capture": caught - warm, "first": done - caught}
    return {"imported": imported, "done": done, "token": token, "graphs": len(graphs), "phases": phases}


def save(weights: Path, size: str, context: str) -> dict[str, object]:
    """The model's weights as a file, made before the clock starts."""
    from safetensors.torch import save_file  # noqa: PLC0415

    sys.path.insert(0, str(EXAMPLE.parent))
    import decoder  # noqa: PLC0415

    save_file(dict(decoder.make(size, "bf16", context)[0].state_dict()), weights)
    return {}


SIDES = {"torch": torch_side, "save": save}
READY: dict[str, Literal["first", "all"]] = {"ours": "first", "all": "all"}


# ---- measuring -------------------------------------------------------------------------------------------------------
def one(arguments: list[str]) -> dict[str, float]:
    command = [sys.executable, __file__, *arguments]
    start = time.time_ns()
    said = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    phases = {"start, imports": said["imported"] - start, **said["phases"]}
    return {"seconds": (said["done"] - start) / 1e9, "token": said["token"], "graphs": said["graphs"]} | {
        name: spent / 1e6 for name, spent in phases.items()
    }


def warmed(path: Path) -> None:
    for file in [path] if path.is_file() else path.rglob("*"):
        if file.is_file():
            with file.open("rb") as opened:
                while opened.read(16 << 20):
                    pass


def gpu() -> str:
    query = "name,driver_version,clocks.sm,power.draw,temperature.gpu"
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def measure(core: Path, weights: Path, given: argparse.Namespace) -> bool:
    sides = {
        "ours": ["--side", "ours", str(core)],
        "ours, all": ["--side", "all", str(core)],
        "torch": ["--side", "torch", str(weights), "--size", given.size, "--context", given.context],
    }
    for path in (core, weights):
        warmed(path)
    busy, state = busy_share(), gpu()
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for number in range(given.runs + 1):
        for side in list(sides) if number % 2 == 0 else list(sides)[::-1]:
            measured = one(sides[side])
            if number:  # the first run of each side compiles and caches what later ones find
                runs[side].append(measured)
    medians = {
        side: {name: statistics.median(run[name] for run in all_) for name in all_[0]} for side, all_ in runs.items()
    }
    spreads = {side: spread([run["seconds"] for run in all_]) for side, all_ in runs.items()}
    problems = invalid(spreads, busy)
    if len({run["token"] for all_ in runs.values() for run in all_}) != 1:
        problems.append("the sides gave different tokens")
    for side, phases in medians.items():
        print(f"{side}: {phases['seconds']:.3f} s, {phases['graphs']:.0f} graphs")
        for name, value in phases.items():
            if name not in ("seconds", "token", "graphs"):
                print(f"  {name:24} {value:9.1f} ms")
    described = json.loads((core / "core.json").read_text())
    return print_result(
        metric="seconds from process start to the first result",
        ours=round(medians["ours"]["seconds"], 4),
        peer=round(medians["torch"]["seconds"], 4),
        ratio=round(medians["ours"]["seconds"] / medians["torch"]["seconds"], 4),
        ours_with_all_graphs=round(medians["ours, all"]["seconds"], 4),
        ratio_with_all_graphs=round(medians["ours, all"]["seconds"] / medians["torch"]["seconds"], 4),
        bar=None,
        ok=True,
        problems=problems,
        runs=runs,
        weights_bytes=described["weights"]["size"],
        graphs=len(described["graphs"]),
        nodes=sum(graph["nodes"] for graph in described["graphs"]),
        page_cache="warm",
        gpu_at_start=state,
        load_at_start=round(busy, 3),
        **machine(),
    )


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("path", type=Path, nargs="?", help="a core of examples/decoder.py; default: captured now")
    options.add_argument("--runs", type=int, default=5)
    options.add_argument("--size", default="large")
    options.add_argument("--context", default="256", help="tokens of a sequence: how large the state is")
    options.add_argument("--weights", type=Path, help="the model's weights as saved before; default: saved now")
    options.add_argument("--side", choices=(*READY, *SIDES), help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.side:
        if given.side in READY:
            side = ours(given.path, READY[given.side])
        else:
            side = SIDES[given.side](given.path, given.size, given.context)
        print(json.dumps(side))
        return 0
    with TemporaryDirectory() as folder:
        core, weights = given.path, Path(folder, "weights.safetensors")
        subprocess.run(
            [
                sys.executable,
                __file__,
                "--side",
                "save",
                str(weights),
                "--size",
                given.size,
                "--context",
                given.context,
            ],
            check=True,
        )
        if core is None:
            command = [sys.executable, str(EXAMPLE), folder, "--device", "cuda", "--size", given.size]
            subprocess.run([*command, "--context", given.context], check=True)
            core = next(path for path in Path(folder).iterdir() if (path / "core.json").is_file())
        return 0 if measure(core, weights, given) else 1


if __name__ == "__main__":
    sys.exit(main())
