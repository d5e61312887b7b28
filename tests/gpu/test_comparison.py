"""What the GPU tests compare replays with finds what it is there to find. It runs on the host device, everywhere: the
model has only ops for which PyTorch on the CPU gives the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gpu.prepare import plan, replayed
from gpu.runs import check_replays
from heliograph.capture import CaptureSpec, EntrySpec, StateSpec, TensorSpec, record
from heliograph.device.host import open_host

WIDTH = 16
Replays = Callable[..., dict[str, Any]]


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.linspace(1, 2, WIDTH), requires_grad=False)
        self.kind = ""

    def forward(self, x: Tensor, total: Tensor, pool: Tensor) -> Tensor:
        total.add_(x[0])
        pool[0].add_(x[0])
        pool[1].add_(x[0])
        if self.kind == "same":
            return self.factor * 2
        if self.kind == "nan":
            huge = x * 3e38 * 3e38
            return huge - huge
        return x * self.factor + total


def _step(model: nn.Module, *, x: Tensor, total: Tensor, pool: Tensor) -> dict[str, Tensor]:
    return {"out": model(x, total, pool)}


@pytest.fixture
def replays() -> Iterator[Replays]:
    """Three replays of each bucket; ``after`` changes the model once it is recorded."""
    host = open_host(workers=1)

    def run(kind: str = "", after: Callable[[Scaled], object] = lambda model: None) -> dict[str, Any]:
        model = Scaled()
        model.kind = kind
        spec = CaptureSpec(
            "scaled",
            (EntrySpec("step", ({"rows": 1}, {"rows": 3}), {"x": TensorSpec(("rows", WIDTH), "f32")}, _step),),
            state={"total": StateSpec((WIDTH,), "f32"), "pool": StateSpec((WIDTH,), "f32", grows=True)},
            units=4,
        )
        with record(model, spec, device=host, retain="executable") as recording:
            after(model)
            said = replayed(recording, model, plan(recording, 3))
            return said | {"nodes": {graph.name: len(graph.nodes) for graph in recording.graphs}}

    yield run
    host.close()


def test_replays_that_equal_the_model_pass(replays: Replays) -> None:
    said = replays()
    check_replays(said)
    assert said["eager"]["steps"] == 6
    assert said["outputs"] == {"step/1": 3, "step/3": 3}


def test_another_weight_is_found_in_every_step(replays: Replays) -> None:
    said = replays(after=lambda model: model.factor.add_(1))
    assert said["eager"]["different"] == 6
    with pytest.raises(AssertionError, match="not the uncaptured model's"):
        check_replays(said)


@pytest.mark.parametrize(("kind", "words"), [("same", "step/1"), ("nan", "NaN")])
def test_results_that_prove_nothing_are_found(replays: Replays, kind: str, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_replays(replays(kind))
