"""One run of a model through all buckets of its spec, each recorded on a tape.

A capture makes two: one that only keeps what it sees, and says how much memory is needed, and one under stream
capture. Both place every buffer by the same rules in the same order, so that they have to agree.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn
from torch._decomp import core_aten_decompositions
from torch._subclasses.fake_tensor import FakeTensorMode

from heliograph._native import Function, Stream
from heliograph.capture.buffers import FAR, BufferTable
from heliograph.capture.record_host import Decompositions, HostRecorder
from heliograph.capture.spec import CaptureSpec, EntrySpec, Shape, graph_name, label
from heliograph.capture.storages import DTYPES, TORCH_DTYPES, Storages
from heliograph.capture.tape import Step, Tape
from heliograph.capture.trail import Trail, raising_line, run_model
from heliograph.capture.values import ValueReads, reads_memory, value_read
from heliograph.capture.weights import Weight, fake_weights, swapped
from heliograph.core.manifest import Field
from heliograph.errors import UsageError
from heliograph.ops.launch import ITEM_BYTES, Kernel


@dataclass(frozen=True, slots=True)
class WalkedGraph:
    """One bucket as recorded: its nodes in order, and the buffers that a caller fills and reads."""

    name: str
    entry: EntrySpec
    bucket: Shape
    steps: tuple[Step, ...]
    inputs: tuple[Field, ...]  # shared ones last
    outputs: tuple[Field, ...]


class Walker:
    """The model with everything that all runs share: tensors without values for its weights, decompositions."""

    def __init__(self, model: nn.Module, spec: CaptureSpec, weights: tuple[Weight, ...]) -> None:
        self.model, self.spec, self.weights = model, spec, weights
        self.fake_mode = FakeTensorMode()
        self.fakes = fake_weights(weights, self.fake_mode)
        self.decompositions: Decompositions = dict(core_aten_decompositions())

    def faked(self) -> AbstractContextManager[None]:
        """The model with tensors without values in place of its own."""
        return swapped(self.model, self.weights, self.fakes)


class Walk:
    """One run over all buckets, one ``graph`` call a bucket, in the order of the spec.

    ``written`` names the weights that the model writes to: given, they lie in ``persistent``; found, they are added.
    """

    def __init__(
        self, walker: Walker, *, units: int, private: int = FAR, written: frozenset[str] = frozenset()
    ) -> None:
        self.buffers = BufferTable(walker.spec.slot, units=units, private=private)
        self.written = set(written)
        self.constants: dict[int, Tensor] = {}
        self.graphs: list[WalkedGraph] = []
        self._walker = walker
        self._units = units
        self._weights = {weight.name: self._place_weight(weight) for weight in walker.weights}
        self._state = self._place_state()
        self._shared = {
            name: self._place(f"io/shared/{name}", "io", spec.resolve({}), spec.dtype)
            for name, spec in walker.spec.shared.items()
        }

    def weight_buffer(self, name: str) -> int:
        return self._weights[name]

    def graph(
        self,
        entry: EntrySpec,
        bucket: Shape,
        stream: Stream | None = None,
        function: Callable[[Kernel], Function] | None = None,
    ) -> WalkedGraph:
        """Runs one bucket; with a stream its nodes are submitted there as well."""
        prefix = f"io/{entry.name}/{label(bucket)}"
        inputs = {
            name: self._place(f"{prefix}/in/{name}", "io", spec.resolve(bucket), spec.dtype)
            for name, spec in entry.inputs.items()
        }
        storages = Storages(self.buffers)
        tape = Tape(self.buffers, stream, function)
        trail = Trail(self._walker.model)
        recorder = HostRecorder(
            self._walker.fake_mode, tape, storages, trail, graph_name(entry, bucket), self._walker.decompositions
        )
        try:
            arguments = self._arguments(storages, inputs)
            with self._walker.faked(), trail, self._recording(recorder):
                outputs = run_model(lambda: self._call(entry, prefix, storages, arguments))
        finally:
            storages.close()
            self.buffers.next_graph()
        self.written |= recorder.written
        self.constants |= recorder.constants
        walked = WalkedGraph(
            graph_name(entry, bucket),
            entry,
            bucket,
            tuple(tape.steps),
            fields(inputs) + fields(self._shared),
            fields(outputs),
        )
        self.graphs.append(walked)
        return walked

    @contextmanager
    def _recording(self, recorder: HostRecorder) -> Iterator[None]:
        try:
            with self._walker.fake_mode, recorder, ValueReads():
                yield
        except RuntimeError as error:
            if reads_memory(error):
                raise value_read("a tensor's memory", raising_line(error.__traceback__)) from error
            raise

    def _call(
        self, entry: EntrySpec, prefix: str, storages: Storages, arguments: Mapping[str, Tensor]
    ) -> dict[str, int]:
        """Calls the model and copies what it returns to its outputs."""
        results = entry.call(self._walker.model, **arguments)
        check_results(entry, {*entry.inputs, *self._shared}, results)
        buffers: dict[str, int] = {}
        targets: dict[str, Tensor] = {}
        for name, result in results.items():
            buffers[name] = self._place(f"{prefix}/out/{name}", "io", tuple(result.shape), DTYPES[result.dtype])
            targets[name] = torch.empty(result.shape, dtype=result.dtype)
            storages.adopt(targets[name], buffers[name])
        for name, result in results.items():
            targets[name].copy_(result)
        return buffers

    # ---- the tensors that the model is called with -----------------------------------------------------------------
    def _arguments(self, storages: Storages, inputs: Mapping[str, int]) -> dict[str, Tensor]:
        """Inputs, shared inputs and state as tensors without values, each bound to its buffer."""
        for name, buffer in self._weights.items():
            storages.adopt(self._walker.fakes[name], buffer, weight=name)
        arguments: dict[str, Tensor] = {}
        with self._walker.fake_mode:
            for name, buffer in {**inputs, **self._shared, **self._state}.items():
                placed = self.buffers.all[buffer]
                shape = (self._units, *placed.shape) if placed.grows else placed.shape
                arguments[name] = torch.empty(shape, dtype=TORCH_DTYPES[placed.dtype])
                storages.adopt(arguments[name], buffer)
        return arguments

    def _place_weight(self, weight: Weight) -> int:
        role = "persistent" if weight.name in self.written else "weights"
        return self.buffers.add(f"weights/{weight.name}", role, weight.size, weight.dtype, weight.shape)

    def _place_state(self) -> dict[str, int]:
        """The fixed states in order, the growing one last: it may end anywhere."""
        ordered = sorted(self._walker.spec.state.items(), key=lambda item: item[1].grows)
        placed = {
            name: self._place(f"state/{name}", "state", state.shape, state.dtype, grows=state.grows)
            for name, state in ordered
        }
        return {name: placed[name] for name in self._walker.spec.state}

    def _place(self, name: str, role: str, shape: tuple[int, ...], dtype: str, *, grows: bool = False) -> int:
        return self.buffers.add(name, role, ITEM_BYTES[dtype] * prod(shape), dtype, shape, grows=grows)


def fields(buffers: Mapping[str, int]) -> tuple[Field, ...]:
    return tuple(Field(name=name, buffer=buffer) for name, buffer in buffers.items())


def check_results(entry: EntrySpec, inputs: Container[str], results: object) -> None:
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
