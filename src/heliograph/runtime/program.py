"""A loaded core: named entries, their buffers, the model's state. The only thing that launches.

::

    with verify(path, Policy.local()) as verified, load(verified) as program:
        shape = program.bucket("classify", rows=3)      # {"rows": 4}: the smallest bucket that holds three rows
        program.write("classify", shape, "image", pixels)
        program.run("classify", **shape)
        scores = memoryview(program.read("classify", shape, "scores")).cast("f")

Any thread may call any method. Runs happen one after the other, since the graphs of a core share their scratch; what
a caller writes into a bucket's inputs while that bucket runs is the caller's affair. A call in a state that does not
allow it, also while another thread closes the program, is a UsageError.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import Protocol

from heliograph._native import Device
from heliograph.core.manifest import Bucket, Buffer, Core, Entry, Field
from heliograph.errors import DeviceError, SelfTestError, UsageError
from heliograph.runtime.gate import Gate, State, Use
from heliograph.runtime.loaded import Loaded
from heliograph.runtime.memory import Bytes
from heliograph.runtime.selftest import chosen_cases, clear_state, cleared, kept, self_test
from heliograph.runtime.staging import Staged

Shape = Mapping[str, int]


class Program:
    """Made by ``load``. Close it, or use it as a context."""

    def __init__(self, loaded: Loaded, *, own_device: Device | None, tested: bool) -> None:
        """``own_device`` is closed with the program. ``tested`` waives the self-tests (for measuring them)."""
        self._loaded = loaded
        self._own_device = own_device
        self._waived = tested
        self._untouched = True  # memory is as the load left it: nothing was launched, nobody could write
        self._passed: set[int] = set()
        self._gate = Gate(loaded.verified.name)
        self._order = threading.RLock()  # one run, self-test, reset, read or write at a time
        self._entries = {entry.name: entry for entry in loaded.core.entries}
        self._buckets = {
            (entry.name, frozenset(bucket.shape)): bucket for entry in loaded.core.entries for bucket in entry.buckets
        }
        self.name = loaded.verified.name
        self.digest = loaded.verified.digest
        self.core: Core = loaded.core
        self.plan = loaded.plan
        self.phases: Mapping[str, int] = MappingProxyType({})
        self.staged = Staged(0, 0)  # bytes of weights that were read and are on the device; threads

    # ---- what is in it ------------------------------------------------------------------------------------------

    @property
    def status(self) -> State:
        return self._gate.state

    @property
    def units(self) -> int:
        """Units of growing state (KV blocks) that were mapped, the padding unit 0 included."""
        return self.plan.units

    @property
    def entries(self) -> Mapping[str, Entry]:
        return MappingProxyType(self._entries)

    def bucket(self, entry: str, /, **least: int) -> dict[str, int]:
        """The shape of the smallest bucket that holds at least ``least`` of each dimension."""
        buckets = self._entry(entry).buckets
        known = dict(buckets[-1].shape)
        if not known.keys() >= least.keys():
            raise UsageError(
                f"choosing a bucket of {entry}",
                found=_text(least),
                required=f"dimensions: {', '.join(known) or 'none'}",
                hint="name the dimensions as the core does",
            )
        for bucket in buckets:
            shape = dict(bucket.shape)
            if all(shape[name] >= extent for name, extent in least.items()):
                return shape
        raise UsageError(
            f"choosing a bucket of {entry}",
            found=_text(least),
            required=f"at most {_text(known)}",
            hint="split the work, or capture a larger bucket",
        )

    def fields(self, entry: str, shape: Shape) -> Bucket:
        """A bucket's inputs and outputs, in the order of the core."""
        return self._bucket(entry, shape)

    def buffer(self, entry: str, shape: Shape, field: str) -> Buffer:
        """Type, shape and size of an input or output."""
        return self._loaded.buffer(self._field(self._bucket(entry, shape), entry, field))

    # ---- memory -------------------------------------------------------------------------------------------------

    def view(self, entry: str, shape: Shape, field: str) -> memoryview:
        """The bytes of an input or output, in place and writable. Release it before the program is closed.

        UsageError on a device whose memory the host cannot address: use ``read`` and ``write``, or ``hold``.
        """
        buffer = self.buffer(entry, shape, field)
        with self._gate.call(Use.LOOK):
            self._untouched = False
            return self._loaded.memory.view(buffer.role, buffer.offset, buffer.size)

    def read(self, entry: str, shape: Shape, field: str) -> bytes:
        """A copy of an input or output."""
        buffer = self.buffer(entry, shape, field)
        with self._gate.call(Use.LOOK), self._order, self._faults():
            return self._loaded.memory.read(buffer.role, buffer.offset, buffer.size)

    def write(self, entry: str, shape: Shape, field: str, data: Bytes) -> None:
        """Fills an input; ``data`` has exactly its size."""
        bucket = self._bucket(entry, shape)
        place = self._field(bucket, entry, field)
        buffer = self._loaded.buffer(place)
        with memoryview(data) as view:
            found = "an output" if place in bucket.outputs else f"{view.nbytes} bytes"
        required = f"{buffer.size} bytes for an input"
        if found != f"{buffer.size} bytes":
            raise UsageError(
                f"writing {field} of {entry}", found=found, required=required, hint=f"{buffer.dtype} {buffer.shape}"
            )
        with self._gate.call(Use.LAUNCH), self._order, self._faults():
            self._untouched = False
            self._loaded.memory.write(buffer.role, buffer.offset, data)

    def hold(self, entry: str, shape: Shape) -> Held:
        """All fields of a bucket at hand, for one who fills and reads them again and again. Close it before the
        program is closed."""
        in_place = self._loaded.device.kind == "host"
        return HeldInPlace(self, entry, shape) if in_place else HeldCopies(self, entry, shape)

    def write_inputs(self, entry: str, shape: Shape, data: Bytes) -> None:
        """Fills all inputs of a bucket from one string of bytes, in the order of its fields."""
        buffers = [self._loaded.buffer(field) for field in self._bucket(entry, shape).inputs]
        with memoryview(data) as view:
            found, required = view.nbytes, sum(buffer.size for buffer in buffers)
        if found != required:
            raise UsageError(
                f"writing the inputs of {entry}", found=f"{found} bytes", required=f"{required}", hint="see fields()"
            )
        with self._gate.call(Use.LAUNCH), self._order, self._faults():
            self._untouched = False
            self._loaded.fields.write(buffers, data)

    def read_outputs(self, entry: str, shape: Shape) -> list[bytes]:
        """Copies of all outputs of a bucket, in the order of its fields."""
        bucket = self._bucket(entry, shape)
        with self._gate.call(Use.LOOK), self._order, self._faults():
            return self._loaded.read_fields(bucket.outputs)

    def write_state(self, name: str, at: int, data: Bytes) -> None:
        """Writes a part of a state, from its byte ``at`` on."""
        found = self._state(name)
        with self._gate.call(Use.LAUNCH), self._order, self._faults():
            self._untouched = False
            self._loaded.memory.write("state", found.offset + at, data)

    def read_state(self, name: str) -> bytes:
        """A copy of a state; of growing state all units, padding unit 0 first."""
        found = self._state(name)
        size = found.size * self.units if found.grows else found.size
        with self._gate.call(Use.LOOK), self._order, self._faults():
            return self._loaded.memory.read("state", found.offset, size)

    def state(self, name: str) -> memoryview:
        """A state by its name, in place and writable; of growing state all units, padding unit 0 first. UsageError as
        for ``view``."""
        found = self._state(name)
        size = found.size * self.units if found.grows else found.size
        with self._gate.call(Use.LOOK):
            self._untouched = False
            return self._loaded.memory.view("state", found.offset, size)

    def _state(self, name: str) -> Buffer:
        found = next((b for b in self.core.buffers if b.role == "state" and b.name in (name, f"state/{name}")), None)
        if found is None:
            known = ", ".join(b.name.removeprefix("state/") for b in self.core.buffers if b.role == "state")
            raise UsageError("looking up a state", found=repr(name), required=known or "none", hint="use its name")
        return found

    def reset(self) -> None:
        """As right after the load: state and inputs zero, persistent memory and variables of modules with their initial
        content."""
        with self._gate.call(Use.LAUNCH), self._order, self._faults():
            self._loaded.drain()
            clear_state(self._loaded, self.units)
            self._loaded.restore_initial("scratch")
            self._loaded.memory.fill("io", 0, 0, self._loaded.memory.mapped("io"))

    # ---- running ------------------------------------------------------------------------------------------------

    def run(self, entry: str, /, **shape: int) -> None:
        """Runs a bucket on its inputs and waits for its outputs. Its graphs pass their self-tests before."""
        self.launch(entry, **shape)
        self.drain()

    def launch(self, entry: str, /, **shape: int) -> None:
        """Submits a bucket and returns; launches run in the order in which they were submitted."""
        bucket = self._bucket(entry, shape)
        with self._gate.call(Use.LAUNCH), self._order, self._faults():
            self._prepare(bucket)
            self._untouched = False
            self._loaded.launch(bucket)

    def drain(self) -> None:
        """Waits for everything that was launched."""
        with self._gate.call(Use.LOOK), self._faults():
            self._loaded.drain()

    def prepare(self, entry: str, /, **shape: int) -> None:
        """Builds and self-tests a bucket's graphs now instead of at its first run. State stays as it is."""
        bucket = self._bucket(entry, shape)
        with self._gate.call(Use.TEST), self._order, self._faults():
            self._prepare(bucket)

    def is_ready(self, entry: str, /, **shape: int) -> bool:
        """Whether a run would begin at once."""
        return self._tested(self._bucket(entry, shape))

    def self_test(self, graph: int) -> bool:
        """Runs the whole self-test of the graph with this number in ``core.graphs``; state stays as it is. A graph that
        fails must pass before its next run.

        A start runs its first two cases; this runs all of them.
        """
        if not (isinstance(graph, int) and 0 <= graph < len(self.core.graphs)):
            raise UsageError(
                "running a self-test",
                found=f"graph {graph!r}",
                required=f"a number from 0 to {len(self.core.graphs) - 1}",
                hint="graphs are numbered in the order of core.graphs",
            )
        with self._gate.call(Use.TEST), self._order, self._faults():
            try:
                self._test(graph, whole=True)
            except SelfTestError:
                return False
            return True

    def _tested(self, bucket: Bucket) -> bool:
        return all(segment.graph in self._passed for segment in bucket.segments)

    def _prepare(self, bucket: Bucket) -> None:
        for segment in bucket.segments:
            if segment.graph not in self._passed:
                if self._waived:
                    self._loaded.catalogue.executable(segment.graph)
                    self._passed.add(segment.graph)
                else:
                    self._test(segment.graph, whole=False)

    def _test(self, graph: int, *, whole: bool) -> None:
        cases = chosen_cases(self.core.self_tests[graph], whole=whole)
        self._passed.discard(graph)
        self._loaded.drain()
        for segment in self._loaded.bucket_of(graph).segments:
            self._loaded.catalogue.executable(segment.graph)
        undisturbed = cleared if self._untouched else kept
        with undisturbed(self._loaded, graph, cases):
            self_test(self._loaded, graph, cases)
        self._passed.add(graph)

    def _faults(self) -> _Faults:
        return _Faults(self._gate)

    # ---- life ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> Program:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def open(self, phases: Mapping[str, int], staged: Staged) -> None:
        """For ``load``: the program may be used from now on."""
        self.phases = MappingProxyType(dict(phases))
        self.staged = staged
        self._gate.ready()

    def close(self) -> None:
        """Refuses new calls, waits for those under way, then gives everything back. Idempotent.

        UsageError while a view is held, and the program is then as it was.
        """
        before = self._gate.begin_close()
        if before is None:
            return
        try:
            self._loaded.close()
            if self._own_device is not None:
                self._own_device.close()
        except BaseException:
            self._gate.end_close(before)
            raise
        self._gate.end_close(State.UNLOADED)

    # ---- names --------------------------------------------------------------------------------------------------

    def _entry(self, entry: str) -> Entry:
        if entry not in self._entries:
            raise UsageError(
                "looking up an entry",
                found=repr(entry),
                required=" or ".join(sorted(self._entries)),
                hint="use an entry of this core",
            )
        return self._entries[entry]

    def _bucket(self, entry: str, shape: Shape) -> Bucket:
        found = self._buckets.get((entry, frozenset(shape.items())))
        if found is None:
            shapes = ", ".join(_text(dict(bucket.shape)) for bucket in self._entry(entry).buckets)
            raise UsageError(
                f"looking up a bucket of {entry}",
                found=_text(shape),
                required=f"one of {shapes}",
                hint="bucket() gives the smallest one that holds the work",
            )
        return found

    def _field(self, bucket: Bucket, entry: str, name: str) -> Field:
        for field in (*bucket.inputs, *bucket.outputs):
            if field.name == name:
                return field
        raise UsageError(
            f"looking up a field of {entry}",
            found=repr(name),
            required=" or ".join(field.name for field in (*bucket.inputs, *bucket.outputs)),
            hint="use an input or output of this bucket",
        )


class Held(Protocol):
    """The fields of a bucket under a caller's hand. One thread at a time."""

    def view(self, field: str) -> memoryview:
        """The bytes of a field, writable. Released by ``close``, or before."""

    def send(self) -> None:
        """What was written to inputs is what the next run reads."""

    def fetch(self) -> None:
        """What the last run gave is in the outputs."""

    def close(self) -> None:
        """Idempotent."""


class HeldInPlace:
    """The memory of the device itself."""

    def __init__(self, program: Program, entry: str, shape: Shape) -> None:
        self._program, self._entry, self._shape = program, entry, shape
        self._views: list[memoryview] = []

    def view(self, field: str) -> memoryview:
        self._views.append(self._program.view(self._entry, self._shape, field))
        return self._views[-1]

    def send(self) -> None: ...

    def fetch(self) -> None: ...

    def close(self) -> None:
        while self._views:
            self._views.pop().release()


class HeldCopies:
    """Copies in this process: all inputs go to the device together, all outputs come from it together."""

    def __init__(self, program: Program, entry: str, shape: Shape) -> None:
        self._program, self._entry, self._shape = program, entry, shape
        bucket = program.fields(entry, shape)
        self._inputs = bytearray(sum(program.core.buffers[field.buffer].size for field in bucket.inputs))
        self._fields: dict[str, memoryview] = {}
        at, whole = 0, memoryview(self._inputs)
        for field in bucket.inputs:
            size = program.core.buffers[field.buffer].size
            self._fields[field.name] = whole[at : at + size]
            at += size
        self._outputs = [memoryview(bytearray(program.core.buffers[field.buffer].size)) for field in bucket.outputs]
        self._fields |= {field.name: view for field, view in zip(bucket.outputs, self._outputs, strict=True)}

    def view(self, field: str) -> memoryview:
        return self._fields[field]

    def send(self) -> None:
        self._program.write_inputs(self._entry, self._shape, self._inputs)

    def fetch(self) -> None:
        for view, data in zip(self._outputs, self._program.read_outputs(self._entry, self._shape), strict=True):
            view[:] = data

    def close(self) -> None:
        self._fields.clear()


class _Faults:
    """A device error leaves memory that nobody should trust: the program fails, and the error goes on."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, DeviceError):
            self._gate.fail()


def _text(shape: Shape) -> str:
    return "{" + ", ".join(f"{name}: {extent}" for name, extent in shape.items()) + "}"
