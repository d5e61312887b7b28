"""A core in this process: memory, functions, graphs, one stream. What the program and the checker both stand on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from heliograph._native import Device, Module, Stream
from heliograph.core.manifest import Bucket, Buffer, Core, Field, Global, Region
from heliograph.core.verify import VerifiedCore
from heliograph.errors import DeviceFaultError, FormatError, UsageError
from heliograph.runtime.catalogue import Catalogue
from heliograph.runtime.memory import Bytes, Memory
from heliograph.runtime.plan import MemoryPlan, growing_region


class FieldAccess(Protocol):
    """Inputs or outputs of a bucket, moved together."""

    def write(self, buffers: Sequence[Buffer], data: Bytes) -> None:
        """Fills all of them from one string of bytes, in their order."""

    def read(self, buffers: Sequence[Buffer]) -> Iterator[memoryview]:
        """The bytes of each, in order; a piece is valid until the next one is taken."""

    def fill(self, buffers: Sequence[Buffer], value: int) -> None: ...


class InPlace:
    """Field by field, in memory that the host can address."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def write(self, buffers: Sequence[Buffer], data: Bytes) -> None:
        at = 0
        with memoryview(data) as view:
            for buffer in buffers:
                self._memory.write(buffer.role, buffer.offset, view[at : at + buffer.size])
                at += buffer.size

    def read(self, buffers: Sequence[Buffer]) -> Iterator[memoryview]:
        for buffer in buffers:
            with self._memory.view(buffer.role, buffer.offset, buffer.size) as data:
                yield data

    def fill(self, buffers: Sequence[Buffer], value: int) -> None:
        for buffer in buffers:
            self._memory.fill(buffer.role, buffer.offset, value, buffer.size)


class Loaded:
    """Owns its memory, graphs and stream; borrows the device, which must outlive it.

    One graph of a core runs at a time, since all share ``scratch``. Callers see to that.
    """

    def __init__(
        self, device: Device, verified: VerifiedCore, memory: Memory, plan: MemoryPlan, catalogue: Catalogue
    ) -> None:
        self.device = device
        self.verified = verified
        self.core: Core = verified.core
        self.memory = memory
        self.plan = plan
        self.catalogue = catalogue
        self.fields: FieldAccess = _field_access(device, self.core, memory)
        self.stream: Stream = device.create_stream()
        self.device_bytes = memory.mapped_bytes  # of the device, without executables
        self.places = _places(self.core)
        self.variables = _variables(self.core, catalogue)
        self.changed = False  # whether a launch may have written what ``restore`` puts back
        self._open = True

    def launch(self, bucket: Bucket) -> None:
        """Submits a bucket's graphs in order. They must have been built."""
        self.changed = True
        for segment in bucket.segments:
            self.catalogue.executable(segment.graph).launch(self.stream)

    def drain(self) -> None:
        self.stream.synchronize()

    def bucket_of(self, graph: int) -> Bucket:
        return self.places[graph]

    def buffer(self, field: Field) -> Buffer:
        return self.core.buffers[field.buffer]

    def read_fields(self, fields: Sequence[Field]) -> list[bytes]:
        return [bytes(data) for data in self.fields.read([self.buffer(field) for field in fields])]

    def write_inputs(self, bucket: Bucket, data: bytes) -> None:
        """All inputs of a bucket from one string of bytes, in the order of its fields."""
        buffers = [self.buffer(field) for field in bucket.inputs]
        required = sum(buffer.size for buffer in buffers)
        if len(data) != required:
            raise FormatError(
                "writing the inputs of a self-test",
                found=f"{len(data)} bytes",
                required=f"{required}, the sum of the bucket's input fields",
                hint="the core is inconsistent: capture it again",
            )
        self.fields.write(buffers, data)

    def restore_initial(self, role: str) -> None:
        """Writes a region's initial content (constants, persistent, scratch) from the core."""
        for region in self.core.regions:
            if region.role == role:
                for piece in region.initial:
                    self.memory.write(role, piece.offset, self.verified.blob(piece.blob))

    def restore(self) -> None:
        """What kernels change for good, persistent memory and variables of modules, as before the first launch."""
        if self.changed:
            self.restore_initial("persistent")
            for module, variable in self.variables:
                module.write_global(variable.name, self.verified.blob(variable.blob))
            self.changed = False

    @property
    def growing(self) -> Region | None:
        return growing_region(self.core)

    def close(self) -> None:
        """Waits for what runs, then gives everything back. UsageError, and nothing lost, while a view is held."""
        if self._open:
            with suppress(DeviceFaultError):  # nothing runs any more
                self.drain()
            self.memory.close()
            self.catalogue.close()
            self._open = False


def _field_access(device: Device, core: Core, memory: Memory) -> FieldAccess:
    if device.kind == "host":
        return InPlace(memory)
    from heliograph.runtime.spans import Spans  # noqa: PLC0415 - a host pays for nothing of it

    return Spans(core, memory)


def _variables(core: Core, catalogue: Catalogue) -> Sequence[tuple[Module, Global]]:
    """The variables of modules that the core keeps."""
    kept = [(number, each) for number, record in enumerate(core.modules) for each in record.globals]
    functions = core.functions if kept else ()  # a start does not look at thousands for nothing
    modules = {stated.module: catalogue.functions[at].module for at, stated in enumerate(functions)}
    return [(module, each) for number, each in kept if (module := modules.get(number)) is not None]


def _places(core: Core) -> Mapping[int, Bucket]:
    """The bucket of each graph. This version runs buckets of graphs only."""
    places: dict[int, Bucket] = {}
    for entry in core.entries:
        for bucket in entry.buckets:
            for segment in bucket.segments:
                if segment.kind != "graph":
                    raise UsageError(
                        f"loading entry {entry.name}",
                        found=f"a {segment.kind} segment",
                        required="graph segments",
                        hint="use a version of Heliograph that runs host steps",
                    )
                places[segment.graph] = bucket
    return places
