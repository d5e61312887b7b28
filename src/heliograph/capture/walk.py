"""One run of a model through all buckets of its spec, each recorded on a tape.

A capture makes two: one that only keeps what it sees, and says how much memory is needed, and one under stream
capture. Both place every buffer by the same rules in the same order, so that they have to agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._decomp import core_aten_decompositions
from torch._subclasses.fake_tensor import FakeTensorMode

from heliograph._native import Function, Stream
from heliograph.capture.buffers import FAR, BufferTable
from heliograph.capture.places import PlacedGraph, Places
from heliograph.capture.record_host import Decompositions, HostRecorder
from heliograph.capture.spec import CaptureSpec, EntrySpec, Shape, graph_name
from heliograph.capture.storages import TORCH_DTYPES, Storages
from heliograph.capture.tape import Step, Tape
from heliograph.capture.trail import Trail, first_line, raising_line, run_model, told_with_line
from heliograph.capture.values import ValueReads, reads_memory, value_read
from heliograph.capture.weights import Weight, fake_weights, swapped
from heliograph.ops.launch import Kernel


@dataclass(frozen=True, slots=True)
class WalkedGraph:
    """One bucket as a walk recorded it: what will be its nodes, in order."""

    placed: PlacedGraph
    steps: tuple[Step, ...]


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


def told_running(entry: EntrySpec, bucket: Shape) -> AbstractContextManager[None]:
    """Errors of a model told with the bucket that it runs in."""
    return told_with_line(
        f"running the model for {graph_name(entry, bucket)}",
        first_line(entry.call),
        "let the entry's call run on tensors of these shapes and types in plain PyTorch first",
    )


class Walk:
    """One run over all buckets, one ``graph`` call a bucket, in the order of the spec.

    ``written`` names the weights that the model writes to: given, they lie in ``persistent``; found, they are added.
    """

    def __init__(
        self, walker: Walker, *, units: int, private: int = FAR, written: frozenset[str] = frozenset()
    ) -> None:
        self.buffers = BufferTable(walker.spec.slot, units=units, private=private)
        self.places = Places(walker.spec, walker.weights, self.buffers, written)
        self.written = set(written)
        self.constants: dict[int, Tensor] = {}
        self.graphs: list[WalkedGraph] = []
        self._walker = walker

    def graph(
        self,
        entry: EntrySpec,
        bucket: Shape,
        stream: Stream | None = None,
        function: Callable[[Kernel], Function] | None = None,
    ) -> WalkedGraph:
        """Runs one bucket; with a stream its nodes are submitted there as well."""
        inputs = self.places.inputs(entry, bucket)
        storages = Storages(self.buffers)
        tape = Tape(self.buffers, stream, function)
        trail = Trail(self._walker.model)
        recorder = HostRecorder(
            self._walker.fake_mode, tape, storages, trail, graph_name(entry, bucket), self._walker.decompositions
        )
        try:
            arguments = self._arguments(storages, inputs)
            with self._walker.faked(), trail, told_running(entry, bucket), self._recording(recorder):
                run_model(lambda: self._call(entry, bucket, storages, arguments))
        finally:
            storages.close()
            self.buffers.next_graph()
        self.written |= recorder.written
        self.constants |= recorder.constants
        walked = WalkedGraph(self.places.graph(entry, bucket), tuple(tape.steps))
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

    def _call(self, entry: EntrySpec, bucket: Shape, storages: Storages, arguments: Mapping[str, Tensor]) -> None:
        """Calls the model and copies what it returns to its outputs."""
        results = entry.call(self._walker.model, **arguments)
        outputs = self.places.outputs(entry, bucket, results)
        for name, result in results.items():
            target = torch.empty(result.shape, dtype=result.dtype)
            storages.adopt(target, outputs[name])
            target.copy_(result)

    # ---- the tensors that the model is called with -----------------------------------------------------------------
    def _arguments(self, storages: Storages, inputs: Mapping[str, int]) -> dict[str, Tensor]:
        """Inputs and state as tensors without values, each bound to its buffer."""
        for name, buffer in self.places.weights.items():
            storages.adopt(self._walker.fakes[name], buffer, weight=name)
        arguments: dict[str, Tensor] = {}
        with self._walker.fake_mode:
            for name, buffer in {**inputs, **self.places.state}.items():
                dtype = TORCH_DTYPES[self.buffers.all[buffer].dtype]
                arguments[name] = torch.empty(self.buffers.shape(buffer), dtype=dtype)
                storages.adopt(arguments[name], buffer)
        return arguments
