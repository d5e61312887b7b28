"""Ops on tensors of several types: what PyTorch refuses is refused, what it promotes is recorded as it promotes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heliograph._native import HostDevice
from heliograph.capture import CaptureSpec, EntrySpec, TensorSpec, record
from heliograph.device.host import open_host
from heliograph.errors import CaptureError

Op = Callable[[Tensor, Tensor, Tensor], Tensor]

REFUSED: dict[str, Op] = {  # of rows (2, 8), a vector (8) and a matrix (8, 8)
    "linear": lambda x, v, m: F.linear(x, m, v),
    "matmul": lambda x, v, m: x @ m.t(),
    "mv": lambda x, v, m: x @ v,
    "addmm": lambda x, v, m: torch.addmm(v, x, x.t() @ x),
    "dot": lambda x, v, m: torch.dot(x[0], v),
    "bmm": lambda x, v, m: x[None] @ m[None],
    "conv": lambda x, v, m: F.conv1d(x[None], m[:, :2, None]),
    "layer_norm": lambda x, v, m: F.layer_norm(x, (8,), v, v),
    "group_norm": lambda x, v, m: F.group_norm(x, 2, v, v),
    "batch_norm": lambda x, v, m: F.batch_norm(x, v, v.abs(), v, v),
    "lerp": lambda x, v, m: torch.lerp(x, v.expand_as(x), 0.5),
    "index_add": lambda x, v, m: x.index_add(0, torch.tensor([1]), v[None]),
    "scatter": lambda x, v, m: x.scatter(0, torch.zeros(1, 8, dtype=torch.int64), v[None]),
}
PROMOTED: dict[str, Op] = {
    "add": lambda x, v, m: x + v,
    "mul": lambda x, v, m: x * v,
    "where": lambda x, v, m: torch.where(x > 0, x, v),
    "cat": lambda x, v, m: torch.cat([x, v[None]]),
    "rms_norm": lambda x, v, m: F.rms_norm(x, (8,), v),
    "embedding": lambda x, v, m: F.embedding(torch.tensor([1, 0]), m) + x,
    "layer_norm of halves": lambda x, v, m: F.layer_norm(v, (8,), x[0], x[1]),
}


class Model(nn.Module):
    def __init__(self, op: Op, dtype: torch.dtype) -> None:
        super().__init__()
        self.op = op
        torch.manual_seed(0)
        self.register_buffer("vector", torch.rand(8, dtype=torch.float32).to(dtype))
        self.register_buffer("matrix", torch.rand(8, 8, dtype=torch.float32).to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        return self.op(x, self.vector, self.matrix)


@pytest.fixture(scope="module")
def device() -> Iterator[HostDevice]:
    device = open_host(workers=1)
    yield device
    device.close()


def recorded(model: nn.Module, x: Tensor, device: HostDevice) -> Tensor:
    """What a recording of the model gives."""
    entry = EntrySpec("run", ({},), {"x": TensorSpec((2, 8), "f32")}, lambda m, x: {"y": m(x)})
    with record(model, CaptureSpec("test", (entry,)), device=device, retain="executable") as recording:
        recording.write("run", {}, "x", x.numpy().tobytes())
        recording.run("run")
        dtype = model(x).dtype
        return torch.frombuffer(bytearray(recording.read("run", {}, "y")), dtype=dtype).view(model(x).shape)


@pytest.mark.parametrize("name", REFUSED)
def test_types_that_pytorch_refuses_are_refused_with_op_types_and_line(name: str, device: HostDevice) -> None:
    x, op = torch.rand(2, 8), REFUSED[name]
    with pytest.raises(RuntimeError):
        Model(op, torch.float16)(x)
    with pytest.raises(CaptureError) as refused:
        recorded(Model(op, torch.float16), x, device)
    for part in ("aten.", "f32", "f16", f"{__file__}:{op.__code__.co_firstlineno}"):
        assert part in refused.value.found
    torch.testing.assert_close(recorded(Model(op, torch.float32), x, device), Model(op, torch.float32)(x))


@pytest.mark.parametrize("name", PROMOTED)
def test_types_that_pytorch_promotes_are_promoted(name: str, device: HostDevice) -> None:
    x, model = torch.rand(2, 8), Model(PROMOTED[name], torch.float16)
    expected = model(x)
    torch.testing.assert_close(recorded(model, x, device), expected, rtol=2e-3, atol=2e-3)
