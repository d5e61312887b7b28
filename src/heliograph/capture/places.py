"""Where a model's weights, state, inputs and outputs lie: placed in one order, by the same rules on every device."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from math import prod

from torch import Tensor

from heliograph.capture.buffers import BufferTable
from heliograph.capture.spec import CaptureSpec, EntrySpec, Shape, graph_name
from heliograph.capture.storages import DTYPES
from heliograph.capture.weights import Weight
from heliograph.core.manifest import Field
from heliograph.errors import UsageError
from heliograph.ops.launch import ITEM_BYTES


@dataclass(frozen=True, slots=True)
class PlacedGraph:
    """The graph of a bucket, and the buffers that a caller fills and reads."""

    name: str
    entry: EntrySpec
    bucket: Shape
    inputs: tuple[Field, ...]  # shared ones last
    outputs: tuple[Field, ...]


class Places:
    """The buffers of a model by name: weights, state and shared inputs from the start, a bucket's own from when they
    are first asked for.

    ``written`` names the weights that the model may write to: they lie in ``persistent``.
    """

    def __init__(
        self, spec: CaptureSpec, weights: Iterable[Weight], buffers: BufferTable, written: Container[str]
    ) -> None:
        self._buffers = buffers
        self.weights = {weight.name: self._place_weight(weight, weight.name in written) for weight in weights}
        self.state = self._place_state(spec)
        self._shared = {
            name: self._place(f"io/shared/{name}", "io", tensor.resolve({}), tensor.dtype)
            for name, tensor in spec.shared.items()
        }
        self._inputs: dict[str, dict[str, int]] = {}
        self._outputs: dict[str, dict[str, int]] = {}

    def inputs(self, entry: EntrySpec, bucket: Shape) -> Mapping[str, int]:
        """What a caller fills for a bucket, shared inputs last."""
        graph = graph_name(entry, bucket)
        if graph not in self._inputs:
            own = {
                name: self._place(f"io/{graph}/in/{name}", "io", tensor.resolve(bucket), tensor.dtype)
                for name, tensor in entry.inputs.items()
            }
            self._inputs[graph] = {**own, **self._shared}
        return self._inputs[graph]

    def outputs(self, entry: EntrySpec, bucket: Shape, results: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Where the results of a bucket go. UsageError for results that cannot be stored."""
        graph = graph_name(entry, bucket)
        _check_results(entry, self._inputs[graph], results)
        if graph not in self._outputs:
            self._outputs[graph] = {
                name: self._place(f"io/{graph}/out/{name}", "io", tuple(result.shape), DTYPES[result.dtype])
                for name, result in results.items()
            }
        return self._outputs[graph]

    def graph(self, entry: EntrySpec, bucket: Shape) -> PlacedGraph:
        """A bucket whose inputs and outputs were placed."""
        name = graph_name(entry, bucket)
        return PlacedGraph(name, entry, bucket, _fields(self._inputs[name]), _fields(self._outputs[name]))

    def _place_weight(self, weight: Weight, written: bool) -> int:
        role = "persistent" if written else "weights"
        return self._buffers.add(f"weights/{weight.name}", role, weight.size, weight.dtype, weight.shape)

    def _place_state(self, spec: CaptureSpec) -> dict[str, int]:
        """The fixed states in order, the growing one last: it may end anywhere."""
        ordered = sorted(spec.state.items(), key=lambda item: item[1].grows)
        placed = {
            name: self._place(f"state/{name}", "state", state.shape, state.dtype, grows=state.grows)
            for name, state in ordered
        }
        return {name: placed[name] for name in spec.state}

    def _place(self, name: str, role: str, shape: tuple[int, ...], dtype: str, *, grows: bool = False) -> int:
        return self._buffers.add(name, role, ITEM_BYTES[dtype] * prod(shape), dtype, shape, grows=grows)


def _fields(buffers: Mapping[str, int]) -> tuple[Field, ...]:
    return tuple(Field(name=name, buffer=buffer) for name, buffer in buffers.items())


def _check_results(entry: EntrySpec, inputs: Container[str], results: object) -> None:
    """The model's outputs have to be tensors by name, of types and sizes that can be stored."""
    found = ""
    if not isinstance(results, Mapping):
        found = type(results).__name__
    elif not results:
        found = "no output"
    else:
        for name, value in results.items():
            if not isinstance(name, str) or not name.isidentifier() or name in inputs:
                found = f"an output named {name!r}" + (", as an input is" if name in inputs else "")
            elif not isinstance(value, Tensor) or value.dtype not in DTYPES or value.numel() == 0:
                kind = f"{tuple(value.shape)} {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
                found = f"output {name!r}: {kind}"
    if found:
        raise UsageError(
            f"reading the outputs of entry {entry.name!r}",
            found=found,
            required="a mapping of output names to tensors that are not empty",
            hint="let the entry's call return for example {'scores': model(image)}",
        )
