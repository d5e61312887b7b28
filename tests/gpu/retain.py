"""Captures a model of 64 graphs with memory left for some or all of their executables:
python retain.py RETAIN LEFT [CORES CHECKED].

RETAIN: template or executable. LEFT: bytes of device memory that are free when the captures begin; 0: all there is.
With CORES, a folder, the capture goes on to the published core, with CHECKED bytes free when its checker begins, and a
load of the core is tried beside the same ballast. Prints one JSON object: what the executables took, what was free at
once after everything was given back, and what ("after") when somebody had needed all memory, for which the driver lets
go of what it kept for itself.
"""

from __future__ import annotations

import ctypes
import gc
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from gpu.kernels import call, driver
from heliograph._native import CudaDevice
from heliograph.capture import CaptureSpec, EntrySpec, Recording, TensorSpec, capture
from heliograph.capture.cuda.record import record_cuda
from heliograph.capture.cuda.session import CudaSession
from heliograph.capture.environment import start_in_fixed_environment
from heliograph.capture.export_graph import Retain
from heliograph.errors import HeliographError, OutOfMemoryError

GRAPHS, NODES, WIDTH = 64, 600, 32
PIECE = 1 << 20


def free() -> int:
    found: int = torch.cuda.mem_get_info()[0]
    return found


class Ballast:
    """Device memory that is taken until no more than so much is left."""

    def __init__(self) -> None:
        self._taken: list[int] = []

    def take(self, left: int) -> None:
        most = free()
        while (excess := min(most, free() - left)) >= 2 * PIECE:
            if not self._take(excess):
                most = excess // 2  # not all that is free is to be had in one piece

    def take_all(self) -> None:
        """Also what the driver keeps for itself until somebody needs it, the memory of destroyed executables."""
        size = free()
        while size >= PIECE:
            if not self._take(size):
                size //= 2

    def _take(self, size: int) -> bool:
        address = ctypes.c_uint64()
        refused = driver().cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size // PIECE * PIECE))
        if not refused:
            self._taken.append(address.value)
        return not refused

    def give(self) -> None:
        while self._taken:
            call("cuMemFree_v2", ctypes.c_uint64(self._taken.pop()))


class Steps(nn.Module):
    """``NODES`` small kernels. Before the captures begin, that is after the last uncaptured run, it takes ballast."""

    def __init__(self, ballast: Ballast, left: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.linspace(0.5, 1, WIDTH), requires_grad=False)
        self.runs = 0
        self._ballast, self._left = ballast, left

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.factor
        for _ in range(NODES - 1):
            y.mul_(self.factor)
        self.runs += 1
        if self.runs == GRAPHS + 1 and self._left:  # the smallest bucket ran twice, each of the others once
            torch.cuda.synchronize()
            self._ballast.take(self._left)
        return y


def spec() -> CaptureSpec:
    buckets = tuple({"rows": rows} for rows in range(1, GRAPHS + 1))
    inputs = {"x": TensorSpec(("rows", WIDTH), "f32")}
    return CaptureSpec("steps", (EntrySpec("step", buckets, inputs, lambda model, x: {"out": model(x)}),))


def recorded(model: Steps, retain: Retain, told: dict[str, object]) -> CudaDevice:
    """Records, and gives everything back; the device, for its counters."""
    session = CudaSession(0)
    device = session.device
    try:
        recording, _ = record_cuda(model, spec(), session=session, retain=retain)
    except HeliographError as error:
        told |= {"stopped": isinstance(error, OutOfMemoryError), "error": f"{type(error).__name__}: {error}"}
        return device
    told |= figures(recording)
    recording.release()
    return device


def exported(model: Steps, ballast: Ballast, cores: Path, checked: int, told: dict[str, object]) -> CudaDevice:
    """Captures until the core is published, then tries to load it. The ballast changes before the draft is written."""
    held: list[CudaDevice] = []

    def study(recording: Recording) -> None:
        assert isinstance(recording.device, CudaDevice)
        held.append(recording.device)
        told.update(figures(recording))
        if checked:
            ballast.give()
            ballast.take(checked - recording.arena.mapped_bytes)  # which the checker finds free

    core = capture(model, spec(), cores=cores, device="cuda", retain="template", study=study)
    told |= {"core": str(core), "free before the load": free()}
    command = [sys.executable, str(Path(__file__).with_name("plans.py")), str(core)]
    load = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    told["load"] = json.loads(load.stdout.splitlines()[-1])
    return held[0]


def figures(recording: Recording) -> dict[str, object]:
    costs = [graph.graph.costs for graph in recording.graphs]
    return {
        "device bytes": sum(cost.device_bytes for cost in costs),
        "host bytes": sum(cost.host_bytes for cost in costs),
        "free with executables": free(),
        "mapped": recording.arena.mapped_bytes,
        "recorded": len(recording.graphs),
    }


def main(retain: Retain, left: int, cores: Path | None, checked: int) -> None:
    ballast, begin = Ballast(), time.perf_counter()
    model = Steps(ballast, left)
    told: dict[str, object] = {"retain": retain, "left": left, "graphs": GRAPHS, "nodes": GRAPHS * (NODES + 1)}
    device = exported(model, ballast, cores, checked, told) if cores else recorded(model, retain, told)
    told["seconds"] = time.perf_counter() - begin
    ballast.give()
    gc.collect()
    torch.cuda.empty_cache()
    told["free after"] = free()
    ballast.take_all()
    ballast.give()
    counters = device.counters()
    told |= {
        "after": free(),
        "created": counters["executables_created"],
        "live": counters["executables_live"],
        "runs": model.runs,
        "peak host bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    start_in_fixed_environment()
    kind, most, *rest = sys.argv[1:]
    cores, checked = (Path(rest[0]), int(rest[1])) if rest else (None, 0)
    main("executable" if kind == "executable" else "template", int(most), cores, checked)
