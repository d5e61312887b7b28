"""What was recorded of a graph, node by node, in order; and the recorder that op lowerings write to.

A tape keeps every node with its pointers as (buffer, offset). With a stream it also submits the node there, which
makes it a node of the graph when the stream is capturing. Without one it only keeps it: the run before a capture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from heliograph._native import Function, Stream
from heliograph.capture.buffers import BufferTable
from heliograph.core.templates import CopyNode, KernelNode, MemsetNode, Node, Ref
from heliograph.errors import CaptureError, ForeignMemoryError
from heliograph.ops.launch import ITEM_BYTES, Kernel, Value, View


@dataclass(frozen=True, slots=True)
class Place:
    """A pointer: its address, and the buffer and offset that it stands for."""

    address: int
    buffer: int
    offset: int


@dataclass(frozen=True, slots=True)
class Launch:
    origin: str
    family: str
    name: str
    blocks: int
    params: bytes
    refs: tuple[Ref, ...]


@dataclass(frozen=True, slots=True)
class Fill:
    origin: str
    to: Place
    value: int
    size: int


@dataclass(frozen=True, slots=True)
class Copy:
    origin: str
    to: Place
    source: Place
    size: int


Step = Launch | Fill | Copy


def stored(step: Step, function: Callable[[str, str], int]) -> Node:
    """A step as it is stored. ``function`` numbers the functions, by family and name."""
    if isinstance(step, Launch):
        return KernelNode(
            origin=step.origin,
            function=function(step.family, step.name),
            grid=(step.blocks, 1, 1),
            params=step.params,
            refs=tuple(sorted(step.refs, key=lambda ref: ref.at)),
        )
    if isinstance(step, Fill):
        return MemsetNode(
            origin=step.origin,
            address=step.to.address,
            buffer=step.to.buffer,
            offset=step.to.offset,
            width=step.size,
            value=step.value,
        )
    return CopyNode(
        origin=step.origin,
        to=step.to.address,
        to_buffer=step.to.buffer,
        to_offset=step.to.offset,
        source=step.source.address,
        source_buffer=step.source.buffer,
        source_offset=step.source.offset,
        size=step.size,
    )


class Tape:
    """The steps of one graph. ``function`` finds a kernel's function on the device; given with a stream only."""

    def __init__(
        self,
        buffers: BufferTable,
        stream: Stream | None = None,
        function: Callable[[Kernel], Function] | None = None,
    ) -> None:
        self.steps: list[Step] = []
        self.buffers = buffers
        self._stream = stream
        self._function = function

    def launch(
        self, origin: str, kernel: Kernel, blocks: int, params: bytes, pointers: Sequence[tuple[int, View]]
    ) -> None:
        refs = []
        for at, view in pointers:
            place = self.place(view, 0, origin)
            refs.append(Ref(at=at, buffer=place.buffer, offset=place.offset))
        self.steps.append(Launch(origin, kernel.family, kernel.name, blocks, params, tuple(refs)))
        if self._stream is not None and self._function is not None:
            function = self._function(kernel)
            _check_block(function, kernel, origin)
            self._stream.launch(function, (blocks, 1, 1), params)

    def fill(self, origin: str, view: View, value: int, size: int) -> None:
        to = self.place(view, size, origin)
        self.steps.append(Fill(origin, to, value, size))
        if self._stream is not None:
            self._stream.memset(to.address, value, size)

    def copy(self, origin: str, to: View, source: View, size: int) -> None:
        target, begin = self.place(to, size, origin), self.place(source, size, origin)
        self.steps.append(Copy(origin, target, begin, size))
        if self._stream is not None:
            self._stream.memcpy(target.address, begin.address, size)

    def place(self, view: View, size: int, origin: str) -> Place:
        """The view's address as a buffer and an offset. Refused when it does not lie in the buffer it names; of a
        growing buffer the first unit counts, for nothing may depend on how many there are."""
        buffer = self.buffers.all[view.storage]
        offset = view.address - self.buffers.address(view.storage)
        if not 0 <= offset <= offset + size <= buffer.size:
            raise ForeignMemoryError(
                f"recording {origin}",
                found=f"a pointer {offset} bytes into buffer {buffer.name!r}, with {size} bytes to touch",
                required=f"memory of that buffer, {buffer.size} bytes" + (" in its first unit" if buffer.grows else ""),
                hint="growing state is for ops that find a unit through a table in memory"
                if buffer.grows
                else "the op's lowering computed an address outside the tensor it was given",
            )
        return Place(view.address, view.storage, offset)


class OpTape:
    """The recorder of one call of an op (``ops.launch.Recorder``). Its temporaries are freed by ``close``."""

    def __init__(self, tape: Tape, path: str, origin: str, label: str) -> None:
        self._tape = tape
        self._path, self._origin, self._label = path, origin, label
        self._temporaries: list[int] = []

    def launch(self, kernel: Kernel, blocks: int, **params: Value | None) -> None:
        if blocks < 0 or blocks >= 1 << 32:
            raise CaptureError(
                f"recording {self._origin}",
                found=f"a grid of {blocks} blocks",
                required="0 to 2^32 - 1 blocks",
                hint="capture smaller buckets",
            )
        data, pointers = kernel.params.pack(params)
        if blocks:
            places = [(pointer.at, pointer.view) for pointer in pointers]
            self._tape.launch(self._origin, kernel, blocks, data, places)

    def scratch(self, shape: Sequence[int], dtype: str) -> View:
        extents = tuple(shape)
        name = f"scratch/{self._path}/workspace{len(self._temporaries)}/{self._label}"
        buffer = self._tape.buffers.take_workspace(name, extents, dtype)
        self._temporaries.append(buffer)
        strides, step = [], 1
        for extent in reversed(extents):
            strides.append(step)
            step *= extent
        return View(self._tape.buffers.address(buffer), extents, tuple(reversed(strides)), dtype, buffer)

    def fill(self, view: View, byte: int) -> None:
        self._require_contiguous(view)
        if view.numel:
            self._tape.fill(self._origin, view, byte, view.numel * ITEM_BYTES[view.dtype])

    def copy(self, to: View, source: View) -> None:
        self._require_contiguous(to)
        self._require_contiguous(source)
        size, available = (view.numel * ITEM_BYTES[view.dtype] for view in (to, source))
        if size != available:
            raise CaptureError(
                f"recording {self._origin}",
                found=f"a copy of {available} bytes to {size} bytes",
                required="equal sizes",
                hint="the op's lowering has to copy views of equal size",
            )
        if size:
            self._tape.copy(self._origin, to, source, size)

    def close(self) -> None:
        for buffer in self._temporaries:
            self._tape.buffers.give_workspace(buffer)
        self._temporaries.clear()

    def _require_contiguous(self, view: View) -> None:
        if not view.contiguous:
            raise CaptureError(
                f"recording {self._origin}",
                found=f"a memset or memcpy of strides {view.strides} for shape {view.shape}",
                required="a contiguous view",
                hint="the op's lowering has to copy strided views with a kernel",
            )


def masked(step: Step) -> Step:
    """The step without literal addresses: what has to be equal in two runs whose memory lies elsewhere."""
    if isinstance(step, Launch):
        params = bytearray(step.params)
        for ref in step.refs:
            params[ref.at : ref.at + 8] = bytes(8)
        return replace(step, params=bytes(params))
    if isinstance(step, Fill):
        return replace(step, to=replace(step.to, address=0))
    return replace(step, to=replace(step.to, address=0), source=replace(step.source, address=0))


def _check_block(function: Function, kernel: Kernel, origin: str) -> None:
    """The op's idea of its parameter block against what the driver states about the function."""
    stated = (function.param_bytes, tuple(function.pointer_offsets))
    if stated != (kernel.params.size, kernel.params.pointer_offsets):
        raise CaptureError(
            f"recording {origin}",
            found=f"a parameter block of {kernel.params.size} bytes with pointers at {kernel.params.pointer_offsets}",
            required=f"{stated[0]} bytes with pointers at {stated[1]}, as function {function.name!r} states",
            hint="the op's parameter block and its kernel are of different versions: rebuild the package",
        )
