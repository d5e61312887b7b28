"""Pools and sessions in one process: python pool_life.py unmoved|sessions|private. Prints one JSON object."""

from __future__ import annotations

import json
import sys

import torch

from heliograph._native import CudaImages
from heliograph.capture.cuda.pools import FrameworkPool
from heliograph.capture.cuda.session import CudaSession
from heliograph.capture.cuda.torch_capture import TorchCapture
from heliograph.capture.environment import start_in_fixed_environment
from heliograph.capture.export_graph import record_export_graph
from heliograph.errors import HeliographError

COUNT = 1 << 20


def unmoved() -> dict[str, object]:
    session = CudaSession(0)
    pool = FrameworkPool(session, "scratch", 0)
    told = _emptied(session, pool)
    pool.close()
    session.close()
    return told


def _emptied(session: CudaSession, pool: FrameworkPool) -> dict[str, object]:
    """Kept and freed tensors of a pool, and a graph over them, before and after the allocator's cache is emptied."""
    region = session.regions["scratch"].reservation
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        with pool.used():
            kept = torch.arange(COUNT, device="cuda", dtype=torch.int32)
            freed = kept * 3
            twice = torch.empty_like(kept)
            twice.copy_(kept * 2)
            stream.synchronize()
        capture = TorchCapture(session.device, stream, pool)
        graph = record_export_graph(
            lambda: twice.add_(kept), stream=capture, pools=[pool], owners=(capture.graph,), retain="executable"
        )
        places = [kept.data_ptr(), freed.data_ptr(), twice.data_ptr()]
        content = [bytes(tensor.cpu().numpy().tobytes()) for tensor in (kept, freed, twice)]
        del freed
        live = pool.live()
        torch.cuda.empty_cache()
        told: dict[str, object] = {
            "unmoved": [kept.data_ptr(), twice.data_ptr()] == places[::2] and pool.live() == live,
            "readable": [region.read(at - pool.base, 4 * COUNT) for at in places] == content,
        }
        ours = session.device.borrow_stream(stream.cuda_stream)
        graph.launch(ours)
        graph.launch(ours)
        ours.synchronize()
        told["replayed"] = bool(torch.equal(twice, kept * 4))
    graph.reset()
    return told


def _refused(make: object) -> str:
    assert callable(make)
    try:
        make()
    except HeliographError as error:
        return f"{type(error).__name__}: {error}"
    return "not refused"


def sessions() -> dict[str, object]:
    """A second session, and a second subscription to CUPTI, beside one that is open and after it was closed."""
    session = CudaSession(0)
    told: dict[str, object] = {"images": _refused(CudaImages), "session": _refused(lambda: CudaSession(1))}
    session.close()
    told["after"] = _refused(lambda: CudaSession(1))
    return told


def private() -> dict[str, object]:
    """A capture from PyTorch's private pool is handed to record_export_graph, with our pool as the only one."""
    session = CudaSession(0)
    pool = FrameworkPool(session, "scratch", 0)
    told = _from_both(session, pool)
    pool.close()
    session.close()
    return told


class Private(TorchCapture):
    """What is allocated meanwhile lies in the pool that PyTorch makes for the graph."""

    def begin_capture(self) -> None:
        self.graph.capture_begin(capture_error_mode="thread_local")


def _from_both(session: CudaSession, pool: FrameworkPool) -> dict[str, object]:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        with pool.used():
            x = torch.ones(COUNT, device="cuda")
            stream.synchronize()
        told: dict[str, object] = {}
        for kind, wanted in (("private", Private), ("ours", TorchCapture)):
            capture = wanted(session.device, stream, pool)
            made: list[torch.Tensor] = []

            def run(made: list[torch.Tensor] = made) -> None:
                made.append(x.clone())  # a copy: its addresses are known without a census

            told[kind] = _refused(
                lambda capture=capture, run=run: record_export_graph(
                    run, stream=capture, pools=[pool], owners=(capture.graph,)
                ).reset()
            )
    return told


if __name__ == "__main__":
    start_in_fixed_environment()
    print(json.dumps({"unmoved": unmoved, "sessions": sessions, "private": private}[sys.argv[1]]()))
