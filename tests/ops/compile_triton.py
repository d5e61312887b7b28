"""Compiles every Triton kernel for one GPU target, without a GPU, for calls in several buckets; prints a line of JSON:
kernel -> how many binaries of it there are. Run by test_triton_compile.py in a process of its own.

    python -m ops.compile_triton [sm]      from tests/
"""

from __future__ import annotations

import json
import sys

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from heliograph.ops import triton_ops  # noqa: F401
from heliograph.ops.triton_launch import run

from .packed import generator, random_weight
from .sampling import Batch

BUCKETS = (1, 2, 3, 16, 64)


@triton.jit
def control(x, rows):
    """Specialised on everything, as Triton does unless it is told otherwise."""
    tl.store(x, rows)


class Target:
    """What Triton asks its driver when it compiles."""

    def __init__(self, sm: int) -> None:
        self.sm = sm

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.sm, 32)


def apart(tensor: Tensor, elements: int) -> Tensor:
    """A copy that lies ``elements`` behind a multiple of 16 bytes, with its rows further apart by as many."""
    memory = torch.empty(tensor.shape[0], tensor[0].numel() + elements, dtype=tensor.dtype)
    aligned = torch.empty(memory.numel() + 64, dtype=tensor.dtype)
    start = -aligned.data_ptr() % 64 // tensor.element_size() + elements
    rows = aligned[start : start + memory.numel()].view(memory.shape)[:, : tensor[0].numel()]
    return rows.view(tensor.shape).copy_(tensor) if tensor.dim() < 3 or not elements else tensor.clone()


def calls(rows: int) -> None:
    """Every op on a bucket of ``rows`` rows, with and without ``real``; inputs lie at odd places in some."""
    source = generator(rows)
    odd = rows % 2
    x, y = (apart(torch.randn(rows, 704, generator=source), odd) for _ in range(2))
    heads = torch.randn(rows, 6, 64, generator=source)
    whole = apart(torch.zeros(rows, 1, dtype=torch.int32), 0)[:, 0].contiguous()
    tables = torch.ones(rows, 3, dtype=torch.int32)
    cache = torch.zeros(3, 2, 2, 3, 16, 64, dtype=torch.float16)
    for real in (None, torch.ones(1, dtype=torch.int32)):
        run("add", x, y, real)
        run("silu_mul", x, y, real)
        run("embedding", whole, WEIGHT, "bf16", 704, real)
        run("linear", x, WEIGHT, None, "bf16", 40, real)
        run("rms_norm", x, VECTOR, 1e-5, real)
        run("rope", heads, whole, VECTOR[:32], True, real)
        run("paged_attention", heads, cache, 1, tables, whole, whole, 0.125, real)
        run("sample", *Batch(x, slots=64).args(), real)
    control[(1,)](whole, rows)
    run("gather_rows", x, whole)
    run("clear_padding", x.contiguous(), whole[:1])
    run("resolve_ids", whole, whole, whole)
    run("history_store", whole, whole, whole, tables)
    run("kv_store", heads[:, :3], heads[:, :3], cache, 0, tables, whole, whole)


def main(sm: int) -> None:
    driver.set_active(Target(sm))
    launch, kernels = JITFunction.run, set()

    def compile_only(kernel: JITFunction, *args: object, grid: object, warmup: bool, **options: object) -> None:
        kernels.add(kernel)
        launch(kernel, *args, grid=grid, warmup=True, **options)

    JITFunction.run = compile_only
    for rows in BUCKETS:
        calls(rows)
    print(json.dumps({kernel.__name__: len(kernel.device_caches[0][0]) for kernel in kernels}))


WEIGHT = random_weight("bf16", 40, 704, generator(0))
VECTOR = torch.ones(704)
if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 90)
