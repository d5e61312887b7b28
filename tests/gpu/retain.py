"""Captures a model of 64 graphs with memory left for some or all of their executables: python retain.py RETAIN LEFT.

RETAIN: template or executable. LEFT: bytes of device memory that are free when the captures begin; 0: all there is.
Prints one JSON object: what the executables took, what was free before, what at once after everything was given back,
and what ("after") when somebody had needed all memory, for which the driver lets go of what it kept for itself.
"""

from __future__ import annotations

import ctypes
import gc
import json
import resource
import sys
import time
from typing import Literal

import torch
from torch import Tensor, nn

from gpu.kernels import call, driver
from heliograph.capture import CaptureSpec, EntrySpec, TensorSpec
from heliograph.capture.cuda.record import record_cuda
from heliograph.capture.cuda.session import CudaSession
from heliograph.capture.environment import start_in_fixed_environment
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


def main(retain: Literal["template", "executable"], left: int) -> None:
    session = CudaSession(0)
    device, ballast = session.device, Ballast()
    model = Steps(ballast, left)
    buckets = tuple({"rows": rows} for rows in range(1, GRAPHS + 1))
    inputs = {"x": TensorSpec(("rows", WIDTH), "f32")}
    entry = EntrySpec("step", buckets, inputs, lambda model, x: {"out": model(x)})
    before, begin = free(), time.perf_counter()
    told: dict[str, object] = {"retain": retain, "left": left, "graphs": GRAPHS, "nodes": GRAPHS * (NODES + 1)}
    try:
        recording, _ = record_cuda(model, CaptureSpec("steps", (entry,)), session=session, retain=retain)
    except HeliographError as error:
        told |= {"stopped": isinstance(error, OutOfMemoryError), "error": f"{type(error).__name__}: {error}"}
        del error
    else:
        costs = [graph.graph.costs for graph in recording.graphs]
        told |= {
            "device bytes": sum(cost.device_bytes for cost in costs),
            "host bytes": sum(cost.host_bytes for cost in costs),
            "free with executables": free(),
            "mapped": recording.arena.mapped_bytes,
            "recorded": len(recording.graphs),
        }
        recording.release()
        del recording
    told["seconds"] = time.perf_counter() - begin
    ballast.give()
    gc.collect()
    torch.cuda.empty_cache()
    told["free after"] = free()
    ballast.take_all()
    ballast.give()
    counters = device.counters()
    told |= {
        "before": before,
        "after": free(),
        "created": counters["executables_created"],
        "live": counters["executables_live"],
        "runs": model.runs,
        "peak host bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    start_in_fixed_environment()
    main("executable" if sys.argv[1] == "executable" else "template", int(sys.argv[2]))
