"""Small models of the capture tests, importable by the processes that they start.

python small_models.py CORES [RETAIN]     captures the MLP into CORES and prints its core digest
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from heliograph.capture import CaptureSpec, EntrySpec, StateSpec, TensorSpec, capture


class Mlp(nn.Module):
    """Three layers, a tied pair of weights, a constant made from a list, and a buffer that counts its calls."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.first = nn.Linear(8, width)
        self.second = nn.Linear(width, width)
        self.third = nn.Linear(width, width)
        self.third.weight = self.second.weight
        self.last = nn.Linear(width, 4)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        x = torch.relu(self.first(x))
        x = x + torch.tensor([0.5])
        x = torch.relu(self.second(x)) - torch.relu(self.third(x))
        return self.last(x) * self.calls


def mlp() -> Mlp:
    torch.manual_seed(11)
    return Mlp().eval()


def mlp_step(model: Mlp, x: Tensor, total: Tensor) -> Mapping[str, Tensor]:
    y = model(x)
    total.add_(y.sum(0))
    return {"y": y, "total": total + 0}


def mlp_spec(rows: tuple[int, ...] = (1, 3, 8), slot: int = 0) -> CaptureSpec:
    step = EntrySpec(
        "step",
        buckets=tuple({"rows": count} for count in rows),
        inputs={"x": TensorSpec(("rows", 8), "f32")},
        call=mlp_step,
    )
    return CaptureSpec("mlp", (step,), state={"total": StateSpec((4,), "f32")}, slot=slot)


def digest(core: Path) -> str:
    return hashlib.sha256((core / "core.json").read_bytes()).hexdigest()


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
    print(digest(capture(mlp(), mlp_spec(), cores=Path(sys.argv[1]), retain=sys.argv[2])))
