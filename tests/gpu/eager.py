"""The model as PyTorch runs it, without a graph, in the process that captured it: what every replay has to equal.

Everything it works on is its own: weights, state and inputs lie in PyTorch's default pool, on a stream of its own, so
that nothing a capture did can be right on both sides by being the same memory. Each step runs the model's Python code
anew: a value that the capture froze differs here.

Kernels of cuBLAS and cuDNN are compared bit for bit as well. What these libraries choose them by is the same: shapes,
types and strides, the alignment of addresses (buffers of a core and blocks of PyTorch's allocator both begin at
multiples of 256 bytes, and cuBLASLt asks for no more), the size of the workspace (CUBLAS_WORKSPACE_CONFIG is fixed for
captures), PyTorch's settings (``cuda_settings``). None of them asks whether a stream is capturing.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType

import torch
from torch import Tensor, nn

from heliograph.capture import Recording
from heliograph.capture.examples import raw_bytes
from heliograph.capture.settings import cuda_settings
from heliograph.capture.storages import TORCH_DTYPES
from heliograph.capture.weights import model_weights, standing_for, swapped, without_traces


class Eager:
    """Used as a context: the model's tensors are on the device within it, and back where they were behind it."""

    def __init__(self, model: nn.Module, recording: Recording) -> None:
        device = "cuda" if recording.device.kind == "cuda" else "cpu"
        self._model, self._spec, self._device = model, recording.spec, device
        self._weights = model_weights(model)
        self._placed = {
            weight.name: standing_for(weight, weight.tensor.detach().to(device, copy=True).contiguous())
            for weight in self._weights
        }
        self._state: dict[str, Tensor] = {}
        for name, state in self._spec.state.items():
            index = recording.buffers.find(f"state/{name}")
            assert index is not None
            shape = recording.buffers.shape(index)
            self._state[name] = torch.zeros(shape, dtype=TORCH_DTYPES[state.dtype], device=device)
        self._open = ExitStack()

    def __enter__(self) -> Eager:
        with ExitStack() as opening:
            opening.enter_context(without_traces(self._model, _on_gpu))
            opening.enter_context(cuda_settings())
            if self._device == "cuda":
                torch.cuda.synchronize()  # what was filled above
                opening.enter_context(torch.cuda.stream(torch.cuda.Stream()))
            opening.enter_context(swapped(self._model, self._weights, self._placed))
            self._open = opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def run(self, entry: str, shape: Mapping[str, int], inputs: Mapping[str, bytes]) -> dict[str, bytes]:
        """What the model makes of a bucket's inputs, by name of the output. State changes as the model says."""
        called = next(each for each in self._spec.entries if each.name == entry)
        fields = {**called.inputs, **self._spec.shared}
        given = {
            name: torch.frombuffer(bytearray(inputs[name]), dtype=TORCH_DTYPES[field.dtype])
            .reshape(field.resolve(shape))
            .to(self._device)
            for name, field in fields.items()
        }
        results = called.call(self._model, **given, **self._state)
        return {name: raw_bytes(result.cpu()) for name, result in results.items()}

    def state(self, name: str) -> bytes:
        """A state as it is now, of a growing one with all units."""
        return raw_bytes(self._state[name].cpu())


def _on_gpu(value: object) -> bool:
    """Tables that the model makes on first use are made anew, here and by whoever comes next."""
    return isinstance(value, Tensor) and value.is_cuda
