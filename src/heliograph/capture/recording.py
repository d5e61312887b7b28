"""What was recorded of a model, in the process that recorded it: graphs, buffers, weights, kernel images.

A Recording holds its graphs, and through them the memory they point at, until ``release``. With executables retained
it also replays here, which is what bit equality with another process is measured against.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from types import TracebackType

from heliograph._native import Device, Stream
from heliograph.capture.arena import Arena
from heliograph.capture.buffers import BufferTable
from heliograph.capture.kernels import Kernels
from heliograph.capture.manifests import ExportManifest, ReplayManifest
from heliograph.capture.places import PlacedGraph
from heliograph.capture.spec import CaptureSpec, Shape
from heliograph.core.manifest import Buffer, Target, Tensor
from heliograph.core.templates import Node
from heliograph.device.graph import Graph
from heliograph.errors import GraphStateError, UsageError


@dataclass(frozen=True, slots=True, eq=False)
class RecordedGraph:
    """A graph of one bucket with its nodes in order as they are stored."""

    placed: PlacedGraph
    nodes: tuple[Node, ...]
    graph: Graph
    literal: tuple[Node, ...] | None = None  # with left-over bytes as captured, where ``nodes`` has zeros for them

    @property
    def name(self) -> str:
        return self.placed.name


Kept = tuple[tuple[int, bytes], ...]  # (offset, content) in a region, ascending


class Recording:
    """Made by ``record``. Give its memory back with ``release``, or use it as a context."""

    def __init__(
        self,
        spec: CaptureSpec,
        device: Device,
        stream: Stream,
        arena: Arena,
        buffers: BufferTable,
        graphs: tuple[RecordedGraph, ...],
        tensors: tuple[Tensor, ...],
        kernels: Kernels,
        target: Target,
        retain: str,
        manifest: ExportManifest,
        kept: Mapping[str, Kept],
        limits: tuple[tuple[str, int], ...] = (),
        closing: Callable[[], None] | None = None,
    ) -> None:
        """kept: what of each role's content has to be there before the first launch. limits: of the context (CUDA).
        closing: called before the memory goes."""
        self.spec = spec
        self.device = device
        self.stream = stream
        self.arena = arena
        self.buffers = buffers
        self.graphs = graphs
        self.tensors = tensors
        self.kernels = kernels
        self.target = target
        self.retain = retain
        self.manifest = manifest
        self.kept = kept
        self.limits = limits
        self._closing = closing
        self._replayable = False  # whether that was checked

    def weights(self, piece: int) -> Generator[memoryview | bytes, None, None]:
        """The weights region in pieces of at most ``piece`` bytes: on the host a view each, else a copy.

        Close it if it is not run to its end: it holds a view."""
        size = self.arena.sizes.get("weights", 0)
        for start in range(0, size, piece):
            count, region = min(piece, size - start), self.arena.region("weights")
            if self.device.kind == "host":
                with region.view(start, count) as view:
                    yield view
            else:
                yield region.read(start, count)

    # ---- replaying in this process ---------------------------------------------------------------------------------
    def run(self, entry: str, **shape: int) -> None:
        """Replays a bucket on what its inputs hold, and waits. Needs executables (``retain="executable"``).

        ReplayManifestError, before the first launch, if a graph has none or one that is not as it was recorded.
        """
        graph = self._graph(entry, shape).graph
        if not self._replayable:
            ReplayManifest(self.manifest).check()
            self._replayable = True
        graph.launch(self.stream)
        self.stream.synchronize()

    def write(self, entry: str, shape: Shape, field: str, data: bytes) -> None:
        """Fills an input; ``data`` has exactly its size."""
        buffer = self._buffer(entry, shape, field)
        if len(data) != buffer.size:
            raise UsageError(
                f"writing {field!r} of {entry!r}",
                found=f"{len(data)} bytes",
                required=f"{buffer.size} bytes",
                hint=f"it is {buffer.dtype} {buffer.shape}",
            )
        self.arena.region(buffer.role).write(buffer.offset, data)

    def read(self, entry: str, shape: Shape, field: str) -> bytes:
        """A copy of an input or output."""
        buffer = self._buffer(entry, shape, field)
        return self.arena.region(buffer.role).read(buffer.offset, buffer.size)

    def read_state(self, name: str) -> bytes:
        """A copy of a state, of a growing one with all units."""
        offset, size = self._state(name)
        return self.arena.region("state").read(offset, size)

    def write_state(self, name: str, data: bytes) -> None:
        """Fills a state; ``data`` has exactly its size."""
        offset, size = self._state(name)
        if len(data) != size:
            raise UsageError(
                f"writing state {name!r}",
                found=f"{len(data)} bytes",
                required=f"{size} bytes",
                hint="a growing state has all its units",
            )
        self.arena.region("state").write(offset, data)

    # ---- life ------------------------------------------------------------------------------------------------------
    def release(self) -> None:
        """Resets the graphs and gives the device memory back. Idempotent."""
        for recorded in self.graphs:
            recorded.graph.reset()
        if self._closing is not None:
            self._closing()
        self.arena.close()

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    # ---- names -----------------------------------------------------------------------------------------------------
    def _graph(self, entry: str, shape: Mapping[str, int]) -> RecordedGraph:
        for recorded in self.graphs:
            if recorded.placed.entry.name == entry and dict(recorded.placed.bucket) == dict(shape):
                if recorded.graph.was_reset:
                    raise GraphStateError(
                        f"using {recorded.name!r}",
                        found="a recording that was released",
                        required="a recording that holds its graphs",
                        hint="record the model again",
                    )
                return recorded
        known = ", ".join(recorded.name for recorded in self.graphs)
        raise UsageError(
            f"looking up entry {entry!r}",
            found=f"no bucket {dict(shape)}",
            required=f"one of {known}",
            hint="name every dimension of a captured bucket",
        )

    def _buffer(self, entry: str, shape: Shape, field: str) -> Buffer:
        placed = self._graph(entry, shape).placed
        for each in (*placed.inputs, *placed.outputs):
            if each.name == field:
                return self.buffers.all[each.buffer]
        known = ", ".join(each.name for each in (*placed.inputs, *placed.outputs))
        raise UsageError(
            f"looking up a field of {entry!r}", found=repr(field), required=f"one of {known}", hint="use its name"
        )

    def _state(self, name: str) -> tuple[int, int]:
        index = self.buffers.find(f"state/{name}")
        if index is None:
            raise UsageError(
                "looking up a state",
                found=repr(name),
                required=f"one of {', '.join(self.spec.state) or 'none'}",
                hint="use its name in the spec",
            )
        buffer = self.buffers.all[index]
        return buffer.offset, buffer.size * (self.buffers.units if buffer.grows else 1)
