"""Models whose graphs have what the launches of ordinary ones lack: programmatic edges, clusters, cooperative launches,
priorities, forks, fills of words, copies, empty nodes, graphs inside."""

from __future__ import annotations

import struct
from collections.abc import Callable

import torch
from torch import Tensor, nn

from gpu.kernels import Module, child_graph, compiled, copy, empty_node, fill, launch, launch_with
from heliograph.capture import CaptureSpec, EntrySpec, TensorSpec

Made = tuple[nn.Module, CaptureSpec]
Body = Callable[[Tensor, Tensor], None]
ROWS = ({"rows": 1}, {"rows": 4})
WIDTH = 64
COOPERATIVE, CLUSTER, PROGRAMMATIC_SERIALIZATION = 2, 4, 6  # ids of launch attributes
ONE, TWO_BLOCKS = struct.pack("<i", 1), struct.pack("<3I", 2, 1, 1)

SOURCE = """
#include <cooperative_groups.h>
extern "C" __global__ void first(const float *x, float *out, int n) {
  asm volatile("griddepcontrol.launch_dependents;");
  for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = x[i] + 1.0f;
}
extern "C" __global__ void second(float *out, int n) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] *= 3.0f;
}
static __device__ void ranked(const float *x, float *out, int n) {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) out[i] = x[i] + 2 * rank;
}
extern "C" __global__ void clustered(const float *x, float *out, int n) { ranked(x, out, n); }
extern "C" __global__ void __cluster_dims__(2, 1, 1) fixed(const float *x, float *out, int n) { ranked(x, out, n); }
extern "C" __global__ void turned(const float *x, float *out, int n) {
  int stride = gridDim.x * blockDim.x, start = blockIdx.x * blockDim.x + threadIdx.x;
  for (int i = start; i < n; i += stride) out[i] = x[i] * 2.0f;
  cooperative_groups::this_grid().sync();
  float next[64];
  for (int i = start, k = 0; i < n; i += stride, ++k) next[k % 64] = out[(i + 1) % n];
  cooperative_groups::this_grid().sync();
  for (int i = start, k = 0; i < n; i += stride, ++k) out[i] = next[k % 64];
}
"""


class Edges(nn.Module):
    """``body(x, out)`` writes all of out, f32[rows, 64], as x."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        self.body(x, out)
        return out - 1


class Kernels:
    """The functions of ``SOURCE``, loaded when the first is used."""

    def __init__(self) -> None:
        self.module: Module | None = None

    def run(self, name: str, *tensors: Tensor, grid: int = 1, attributes: tuple[tuple[int, bytes], ...] = ()) -> None:
        if self.module is None:
            self.module = Module(compiled(SOURCE))
        params = [struct.pack("<Q", tensor.data_ptr()) for tensor in tensors]
        params.append(struct.pack("<i", tensors[0].numel()))
        function = self.module.function(name)
        if attributes:
            launch_with(function, params, attributes, grid=grid, block=32)
        else:
            launch(function, params, grid=grid, block=32)


def _made(body: Body) -> Made:
    entry = EntrySpec("step", ROWS, {"x": TensorSpec(("rows", WIDTH), "f32")}, lambda model, x: {"out": model(x)})
    return Edges(body), CaptureSpec("edges", (entry,))


def programmatic() -> Made:
    """A kernel that may begin while the one before it still runs."""
    kernels = Kernels()

    def body(x: Tensor, out: Tensor) -> None:
        kernels.run("first", x, out)
        kernels.run("second", out, attributes=((PROGRAMMATIC_SERIALIZATION, ONE),))

    return _made(body)


def clusters() -> Made:
    """A cluster stated at the launch, and one fixed at compile time."""
    kernels = Kernels()

    def body(x: Tensor, out: Tensor) -> None:
        kernels.run("clustered", x, out, grid=4, attributes=((CLUSTER, TWO_BLOCKS),))
        kernels.run("fixed", out, out, grid=4)

    return _made(body)


def cooperative() -> Made:
    """Blocks that wait for each other."""
    kernels = Kernels()

    def body(x: Tensor, out: Tensor) -> None:
        kernels.run("turned", x, out, grid=8, attributes=((COOPERATIVE, ONE),))

    return _made(body)


def forked() -> Made:
    """Work on a side stream of high priority, joined again."""
    kernels = Kernels()
    sides: list[torch.cuda.Stream] = []

    def body(x: Tensor, out: Tensor) -> None:
        if not sides:
            sides.append(torch.cuda.Stream(priority=-1))
        other, main = torch.empty_like(x), torch.cuda.current_stream()
        sides[0].wait_stream(main)
        with torch.cuda.stream(sides[0]):
            kernels.run("first", x, other)
            torch.mul(other, 5, out=other)
        kernels.run("first", x, out)
        main.wait_stream(sides[0])
        out.add_(other)

    return _made(body)


def fills_and_copies() -> Made:
    """Fills of bytes, half words and words, and copies on the device."""

    def body(x: Tensor, out: Tensor) -> None:
        words = torch.empty((3, *x.shape), dtype=torch.int32, device=x.device)
        for row, (value, element) in enumerate(((0x11, 1), (0x0102, 2), (0x01020304, 4))):
            fill(words[row], value, element)
        again = torch.empty_like(words)
        copy(again, words)
        copy(out, x)
        out.add_(again.sum(0) % 1021)

    return _made(body)


def inside() -> Made:
    """An empty node, and a graph of two kernels inside the graph."""
    kernels = Kernels()

    def body(x: Tensor, out: Tensor) -> None:
        kernels.run("first", x, out)
        empty_node()
        assert kernels.module is not None
        params = [struct.pack("<Q", out.data_ptr()), struct.pack("<Q", out.data_ptr()), struct.pack("<i", x.numel())]
        child_graph(kernels.module.function("first"), [params, params], block=32)

    return _made(body)


BODIES = ("programmatic", "clusters", "cooperative", "forked", "fills_and_copies", "inside")


def expected(name: str, x: Tensor) -> Tensor:
    """What the model makes of x, in plain PyTorch."""
    flat = torch.arange(x.numel()).reshape(x.shape)
    rank = (flat // 32 % 4 % 2).float()  # in a cluster of 2, of the block that has an element
    words = (0x11111111 + 0x01020102 + 0x01020304) % 1021
    made = {
        "programmatic": lambda: (x + 1) * 3,
        "clusters": lambda: (x + 2 * rank) + 2 * rank,
        "cooperative": lambda: (x * 2).flatten().roll(-1).reshape(x.shape),
        "forked": lambda: (x + 1) + (x + 1) * 5,
        "fills_and_copies": lambda: x + words,
        "inside": lambda: x + 1 + 1 + 1,
    }[name]()
    return made - 1
