"""Models for the captures of these tests: ``factory(arguments) -> (model, spec)``, made the same in every process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from heliograph.capture import CaptureSpec, EntrySpec, StateSpec, TensorSpec

WIDTH = 256
WIDE = 5120  # a matrix of bf16 has 50 MiB


class Mlp(nn.Module):
    """Products by cuBLAS, a softmax, a running sum in state, a buffer that is only read, one that is written."""

    scale: Tensor
    calls: Tensor

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16) for _ in range(layers))
        self.register_buffer("scale", torch.linspace(0.5, 1.5, WIDTH).to(torch.bfloat16))
        self.register_buffer("calls", torch.full((8,), 7, dtype=torch.int32))
        self.table: Tensor | None = None

    def forward(self, x: Tensor, total: Tensor) -> Tensor:
        if self.table is None:  # made on first use, as models do with masks
            self.table = torch.linspace(-1, 1, WIDTH, device=x.device).to(torch.bfloat16)
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x)) * self.scale + self.table
        self.calls.add_(1)
        total.add_(x.float().sum(0))
        return torch.softmax(x.float(), -1) + self.calls[0]


def mlp(layers: str = "3") -> tuple[nn.Module, CaptureSpec]:
    torch.manual_seed(1)
    entry = EntrySpec(
        "step",
        buckets=tuple({"rows": rows} for rows in (1, 2, 3, 8)),
        inputs={"x": TensorSpec(("rows", WIDTH), "bf16")},
        call=_step,
    )
    return Mlp(int(layers)).eval(), CaptureSpec("mlp", (entry,), state={"total": StateSpec((WIDTH,), "f32")})


def _step(model: nn.Module, *, x: Tensor, total: Tensor) -> Mapping[str, Tensor]:
    return {"scores": model(x, total)}


class Wide(nn.Module):
    """Two products with 50 MiB of weights each, and a running sum."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(5)
        self.layers = nn.ParameterList(
            nn.Parameter(torch.randn(WIDE, WIDE, generator=draw).to(torch.bfloat16) / WIDE**0.5, requires_grad=False)
            for _ in range(2)
        )

    def forward(self, x: Tensor, total: Tensor) -> Tensor:
        for weight in self.layers:
            x = torch.tanh(x @ weight)
        total.add_(x.float().sum(0))
        return x.float()


def wide() -> tuple[nn.Module, CaptureSpec]:
    """More than 64 MiB of weights."""
    entry = EntrySpec(
        "step",
        buckets=tuple({"rows": rows} for rows in (1, 8)),
        inputs={"x": TensorSpec(("rows", WIDE), "bf16")},
        call=_step,
    )
    return Wide().eval(), CaptureSpec("wide", (entry,), state={"total": StateSpec((WIDE,), "f32")})


UNITS = 64  # blocks of keys and values at capture; the self-tests touch 8


def blocks(path: str) -> tuple[nn.Module, CaptureSpec]:
    """Our Llama with few and small buckets, captured with more blocks than its self-tests touch."""
    from heliograph.models.load_cuda import load_for_cuda  # the other models need no Triton
    from heliograph.models.serving import Serving

    loaded = load_for_cuda(Path(path), serving=Serving(96, decode_rows=(1, 2, 4), prefill_tokens=(16, 64), masks=4))
    return loaded.model, replace(loaded.spec, units=UNITS)
