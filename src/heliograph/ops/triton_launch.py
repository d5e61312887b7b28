"""How a call of an op becomes Triton launches: through the same lowering that the host device has.

A lowering states the kernels of a call with every pointer, stride and count by name. Here each kernel's name stands
for a function that launches the Triton kernel with those of them that it needs, so what is refused, which strides are
taken and what ``real`` means is decided in one place for all devices. What a launcher does not need it leaves in
``**others``: blocks of a host grid and the like. Needs torch; ``triton_ops`` imports every launcher.

All kernels keep to this, or a row would have other bits in another bucket:

- One program computes whole rows of a result (or a tile of their columns) by an inner loop that no count of rows
  changes; a row never shares a sum with another row.
- Nothing that differs from bucket to bucket is specialised: counts, strides of activations and ``has_real`` stand in
  ``do_not_specialize``, pointers to inputs and activations in ``do_not_specialize_on_alignment``. So one binary serves
  all buckets, and one order of accumulation. Shapes of the model and pointers to weights and to the key/value memory
  may be specialised: they are the same in all buckets.
- Row and block indices are widened to 64 bits before they are multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from heliograph.errors import UnsupportedOpError
from heliograph.ops.launch import LOWERINGS, Kernel, Value, View

Launcher = Callable[..., None]
Result = Tensor | tuple[Tensor, ...] | None
LAUNCHERS: dict[str, Launcher] = {}
DTYPES = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "bool",
}  # fmt: skip
TORCH = {name: dtype for dtype, name in DTYPES.items()}
AnyLauncher = TypeVar("AnyLauncher", bound=Launcher)


def launches(*kernels: Kernel) -> Callable[[AnyLauncher], AnyLauncher]:
    """Registers what launches a kernel. It is called with the kernel's parameters by name, a tensor for each pointer
    that is not null, and with ``blocks``."""

    def register(launcher: AnyLauncher) -> AnyLauncher:
        for kernel in kernels:
            if kernel.name in LAUNCHERS:
                raise ValueError(f"two Triton kernels for {kernel.name}")
            LAUNCHERS[kernel.name] = launcher
        return launcher

    return register


def stated(real: Tensor | None, instead: Tensor) -> tuple[Tensor, int]:
    """``real`` as kernels take it: a pointer to i32 always, and whether to read it. A kernel without the pointer would
    be another binary, which prefill would run where decode does not."""
    return (instead.view(torch.int32), 0) if real is None else (real, 1)


class TritonRecorder:
    """``ops.launch.Recorder`` that launches what it is given on the current stream."""

    def __init__(self, op: str, device: torch.device) -> None:
        self.op = op
        self.device = device
        self._tensors: list[Tensor] = []

    def view(self, tensor: Tensor) -> View:
        """A view on a tensor, which lives as long as this does."""
        self._tensors.append(tensor)
        dtype = DTYPES.get(tensor.dtype, str(tensor.dtype))
        return View(tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), dtype, len(self._tensors) - 1)

    def launch(self, kernel: Kernel, blocks: int, **params: Value | None) -> None:
        launcher = LAUNCHERS.get(kernel.name)
        if launcher is None:
            raise UnsupportedOpError(
                f"launching heliograph::{self.op}", found=f"kernel {kernel.name}, which CUDA devices do not have",
                required=f"one of {', '.join(sorted(LAUNCHERS))}",
                hint="packed weights become plain ones by heliograph.models.dequantise.dequantised",
            )  # fmt: skip
        if blocks:
            given = {name: self._tensors[v.storage] if isinstance(v, View) else v for name, v in params.items()}
            launcher(blocks=blocks, **given)

    def scratch(self, shape: Sequence[int], dtype: str) -> View:
        return self.view(torch.empty(tuple(shape), dtype=TORCH[dtype], device=self.device))

    def fill(self, view: View, byte: int) -> None:
        raise NotImplementedError  # no lowering of heliograph's own ops fills or copies

    def copy(self, to: View, source: View) -> None:
        raise NotImplementedError


def run(op: str, *args: object, **keywords: object) -> Result:
    """Calls an op of namespace heliograph with its Triton kernels. All tensors are on one device.

    Raises UnsupportedOpError: shapes, types or strides that no kernel takes.
    """
    overload = getattr(torch.ops.heliograph, op).default
    device = next(value.device for value in (*args, *keywords.values()) if isinstance(value, Tensor))
    shapes = overload(*map(_shape, args), **{name: _shape(value) for name, value in keywords.items()})
    fresh = () if shapes is None else (shapes,) if isinstance(shapes, Tensor) else tuple(shapes)
    outs = tuple(torch.empty(t.shape, dtype=t.dtype, device=device) for t in fresh)
    recorder = TritonRecorder(op, device)

    def viewed(value: object) -> object:
        return recorder.view(value) if isinstance(value, Tensor) else value

    LOWERINGS[str(overload)](
        recorder, tuple(map(viewed, args)), {name: viewed(value) for name, value in keywords.items()},
        tuple(recorder.view(out) for out in outs),
    )  # fmt: skip
    return None if shapes is None else outs[0] if isinstance(shapes, Tensor) else outs


def _shape(value: object) -> object:
    return value.to("meta") if isinstance(value, Tensor) else value
