"""Models that use memory as a capture does not allow, each beside the one in which only that is put right:
``factory("wrong")`` and ``factory("right")``."""

from __future__ import annotations

from threading import Thread

import torch
from torch import Tensor, nn

from heliograph.capture import CaptureSpec, EntrySpec, TensorSpec

Made = tuple[nn.Module, CaptureSpec]
ROWS = ({"rows": 1}, {"rows": 4})
WIDTH = 64


def _made(model: nn.Module) -> Made:
    entry = EntrySpec("step", ROWS, {"x": TensorSpec(("rows", WIDTH), "f32")}, lambda model, x: {"out": model(x)})
    return model, CaptureSpec("faulty", (entry,))


class _Model(nn.Module):
    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.wrong = wrong
        self.factor = nn.Parameter(torch.linspace(1, 2, WIDTH), requires_grad=False)
        self.register_buffer("count", torch.zeros(WIDTH))


class Writes(_Model):
    """Writes to a parameter; the other one to a buffer."""

    count: Tensor

    def forward(self, x: Tensor) -> Tensor:
        (self.factor if self.wrong else self.count).add_(1)
        return x * self.factor + self.count


class Keeps(_Model):
    """Keeps a tensor with every run; the other one only that of its first run."""

    def __init__(self, wrong: bool) -> None:
        super().__init__(wrong)
        self.kept: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.wrong or not self.kept:
            self.kept.append(self.factor * 3)
        return x * self.kept[0]


class Elsewhere(_Model):
    """A table that another thread makes, with memory of PyTorch's default pool; the other one makes it here."""

    def __init__(self, wrong: bool) -> None:
        super().__init__(wrong)
        self.table: Tensor | None = None

    def _make(self) -> None:
        self.table = torch.linspace(0, 1, WIDTH, device="cuda")

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            if self.wrong:
                other = Thread(target=self._make)
                other.start()
                other.join()
            else:
                self._make()
        assert self.table is not None
        return x * self.factor + self.table


class Draws(_Model):
    """Takes random numbers, whose seed a graph would freeze; the other one takes none."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (torch.rand(WIDTH, device=x.device) if self.wrong else self.factor)


def draws(which: str) -> Made:
    return _made(Draws(which == "wrong"))


def writes(which: str) -> Made:
    return _made(Writes(which == "wrong"))


def keeps(which: str) -> Made:
    return _made(Keeps(which == "wrong"))


def elsewhere(which: str) -> Made:
    return _made(Elsewhere(which == "wrong"))


def early(which: str) -> Made:
    """PyTorch is on the GPU before the capture begins."""
    if which == "wrong":
        torch.cuda.init()
    return _made(Keeps(False))


def private_pool(which: str) -> Made:
    """The capture lets PyTorch take memory from the pool that it makes for each graph, not from ours."""
    if which == "wrong":
        from heliograph.capture.cuda import record
        from heliograph.capture.cuda.torch_capture import TorchCapture

        class Private(TorchCapture):
            def begin_capture(self) -> None:
                self.graph.capture_begin(capture_error_mode="thread_local")

        vars(record)["TorchCapture"] = Private
    return _made(Keeps(False))
