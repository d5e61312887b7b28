"""One model on the device, run bucket by bucket: uncaptured first, so that everything has its place, then captured.

Weights, inputs, outputs, state and constants lie where the buffer table puts them, by the same rules as on the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from heliograph.capture.buffers import BufferTable
from heliograph.capture.cuda.session import CudaSession, RegionBytes
from heliograph.capture.cuda.tensors import tensor_at, weight_tensor
from heliograph.capture.examples import example
from heliograph.capture.places import Places
from heliograph.capture.spec import CaptureSpec, EntrySpec, Shape
from heliograph.capture.walk import told_running
from heliograph.capture.weights import Weight


class BackedTable(BufferTable):
    """Buffers that have memory as soon as they are placed. Those of PyTorch, which are only put, have it already."""

    def __init__(self, slot: int, *, units: int, regions: Mapping[str, RegionBytes]) -> None:
        super().__init__(slot, units=units)
        self._regions = regions

    def add(self, name: str, role: str, size: int, dtype: str, shape: Iterable[int], *, grows: bool = False) -> int:
        index = super().add(name, role, size, dtype, shape, grows=grows)
        self._regions[role].reach(self.all[index].offset + size * (self.units if grows else 1))
        return index


class CudaWalk:
    """Places everything of a model and calls it. Parameters are weights; buffers may be written, so they persist."""

    def __init__(
        self,
        model: nn.Module,
        spec: CaptureSpec,
        weights: tuple[Weight, ...],
        session: CudaSession,
    ) -> None:
        self.model, self.spec, self.weights = model, spec, weights
        self.buffers = BackedTable(spec.slot, units=spec.units, regions=session.regions)
        written = {weight.name for weight in weights if not isinstance(weight.tensor, nn.Parameter)}
        self.places = Places(spec, weights, self.buffers, written)
        self._regions = session.regions
        self._index = session.device.index
        self._tensors: dict[int, Tensor] = {}

    def device_weights(self) -> dict[str, Tensor]:
        """A tensor over the place of each weight, by its first name, with the model's values."""
        placed: dict[str, Tensor] = {}
        for weight in self.weights:
            address = self.buffers.address(self.places.weights[weight.name])
            placed[weight.name] = weight_tensor(weight, address, index=self._index)
        self.fill_weights(placed)
        return placed

    def fill_weights(self, placed: Mapping[str, Tensor]) -> None:
        """Gives the tensors on the device the model's values."""
        with torch.no_grad():
            for weight in self.weights:
                placed[weight.name].copy_(weight.tensor)

    def prepare(self, entry: EntrySpec, bucket: Shape, seed: int = 0) -> None:
        """Places the inputs of a bucket and fills them with those of an example."""
        inputs = self.places.inputs(entry, bucket)
        given = example(self.spec, entry, bucket, seed)
        for field, index in inputs.items():
            buffer = self.buffers.all[index]
            self._regions["io"].reservation.write(buffer.offset, given.inputs[field])

    def run(self, entry: EntrySpec, bucket: Shape) -> None:
        """Calls the model on its inputs, and copies what it returns to its outputs."""
        arguments = {**self.places.inputs(entry, bucket), **self.places.state}
        tensors = {field: self._tensor(index) for field, index in arguments.items()}
        with told_running(entry, bucket):
            results = entry.call(self.model, **tensors)
        outputs = self.places.outputs(entry, bucket, results)
        for field, result in results.items():
            self._tensor(outputs[field]).copy_(result)

    def clear(self) -> None:
        """State, inputs and outputs are zero again."""
        for role in ("state", "io"):
            region = self._regions[role]
            if region.mapped:
                region.reservation.fill(0, 0, region.mapped)

    def close(self) -> None:
        """Lets go of the tensors over our memory."""
        self._tensors.clear()

    def _tensor(self, index: int) -> Tensor:
        if index not in self._tensors:
            buffer = self.buffers.all[index]
            self._tensors[index] = tensor_at(
                self.buffers.address(index), self.buffers.shape(index), buffer.dtype, index=self._index
            )
        return self._tensors[index]
