"""One model on the device, run bucket by bucket: uncaptured first, so that everything has its place, then captured.

Weights, inputs, outputs, state and constants lie where the buffer table puts them, by the same rules as on the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from heliograph.capture.buffers import BufferTable
from heliograph.capture.cuda.session import CudaSession
from heliograph.capture.cuda.tensors import tensor_at, weight_tensor
from heliograph.capture.examples import example
from heliograph.capture.spec import CaptureSpec, EntrySpec, Shape, graph_name, label
from heliograph.capture.storages import DTYPES
from heliograph.capture.walk import check_results, fields
from heliograph.capture.weights import Weight
from heliograph.core.manifest import Field
from heliograph.ops.launch import ITEM_BYTES


@dataclass(frozen=True, slots=True)
class PlacedGraph:
    """A bucket's buffers: what a caller fills and reads, and the tensors over them."""

    name: str
    entry: EntrySpec
    bucket: Shape
    inputs: tuple[Field, ...]  # shared ones last
    outputs: tuple[Field, ...]


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
        self.buffers = BufferTable(spec.slot, units=spec.units)
        self.graphs: dict[str, PlacedGraph] = {}
        self._regions = session.regions
        self._index = session.device.index
        self._weights = {weight.name: self._place_weight(weight) for weight in weights}
        ordered = sorted(spec.state.items(), key=lambda item: item[1].grows)  # the growing one last
        self._state = {
            name: self._place(f"state/{name}", "state", state.shape, state.dtype, grows=state.grows)
            for name, state in ordered
        }
        self._shared = {
            name: self._place(f"io/shared/{name}", "io", shared.resolve({}), shared.dtype)
            for name, shared in spec.shared.items()
        }
        self._inputs: dict[str, dict[str, int]] = {}
        self._outputs: dict[str, dict[str, int]] = {}
        self._tensors: dict[int, Tensor] = {}

    def weight_buffer(self, name: str) -> int:
        return self._weights[name]

    def device_weights(self) -> dict[str, Tensor]:
        """A tensor over the place of each weight, by its first name, with the model's values."""
        placed: dict[str, Tensor] = {}
        for weight in self.weights:
            tensor = weight_tensor(weight, self.buffers.address(self._weights[weight.name]), index=self._index)
            placed[weight.name] = tensor
        self.fill_weights(placed)
        return placed

    def fill_weights(self, placed: Mapping[str, Tensor]) -> None:
        """Gives the tensors on the device the model's values."""
        with torch.no_grad():
            for weight in self.weights:
                placed[weight.name].copy_(weight.tensor)

    def prepare(self, entry: EntrySpec, bucket: Shape, seed: int = 0) -> None:
        """Places the inputs of a bucket, once, and fills them with those of an example."""
        name = graph_name(entry, bucket)
        if name not in self._inputs:
            self._inputs[name] = {
                field: self._place(
                    f"io/{entry.name}/{label(bucket)}/in/{field}", "io", spec.resolve(bucket), spec.dtype
                )
                for field, spec in entry.inputs.items()
            }
        given = example(self.spec, entry, bucket, seed)
        for field, index in {**self._inputs[name], **self._shared}.items():
            buffer = self.buffers.all[index]
            self._regions["io"].reservation.write(buffer.offset, given.inputs[field])

    def run(self, entry: EntrySpec, bucket: Shape) -> None:
        """Calls the model on its inputs, and copies what it returns to its outputs."""
        name = graph_name(entry, bucket)
        arguments = {**self._inputs[name], **self._shared, **self._state}
        results = entry.call(self.model, **{field: self._tensor(index) for field, index in arguments.items()})
        check_results(entry, {*entry.inputs, *self._shared}, results)
        if name not in self._outputs:
            self._outputs[name] = {
                field: self._place(
                    f"io/{entry.name}/{label(bucket)}/out/{field}", "io", tuple(result.shape), DTYPES[result.dtype]
                )
                for field, result in results.items()
            }
            self.graphs[name] = PlacedGraph(
                name,
                entry,
                bucket,
                fields(self._inputs[name]) + fields(self._shared),
                fields(self._outputs[name]),
            )
        for field, result in results.items():
            self._tensor(self._outputs[name][field]).copy_(result)

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
            shape = (self.spec.units, *buffer.shape) if buffer.grows else buffer.shape
            self._tensors[index] = tensor_at(self.buffers.address(index), shape, buffer.dtype, index=self._index)
        return self._tensors[index]

    def _place_weight(self, weight: Weight) -> int:
        role = "weights" if isinstance(weight.tensor, nn.Parameter) else "persistent"
        return self._add(f"weights/{weight.name}", role, weight.size, weight.dtype, weight.shape)

    def _place(self, name: str, role: str, shape: tuple[int, ...], dtype: str, *, grows: bool = False) -> int:
        return self._add(name, role, ITEM_BYTES[dtype] * prod(shape), dtype, shape, grows=grows)

    def _add(self, name: str, role: str, size: int, dtype: str, shape: tuple[int, ...], *, grows: bool = False) -> int:
        index = self.buffers.add(name, role, size, dtype, shape, grows=grows)
        end = self.buffers.all[index].offset + size * (self.spec.units if grows else 1)
        self._regions[role].reach(end)
        return index
