"""From a verified core to a program, or back to nothing.

Addresses are reserved before anything else is done, all numbers are known before the first byte of weights is
copied, and whatever fails gives back everything that was taken: the same process may load again.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Literal

import msgspec

from heliograph._native import CudaDevice, Device, Function, Module
from heliograph.core.manifest import Bucket, Core
from heliograph.core.target import check_target, machine_of, other_model, this_host
from heliograph.core.verify import VerifiedCore
from heliograph.device.host import open_host
from heliograph.device.modules import load_module, raise_descriptor_limit
from heliograph.errors import ModuleError, UsageError
from heliograph.runtime.budget import memory_budget
from heliograph.runtime.catalogue import Catalogue
from heliograph.runtime.loaded import Loaded
from heliograph.runtime.memory import READ_ONLY, Memory
from heliograph.runtime.patterns import state_period
from heliograph.runtime.plan import NO_OVERHEAD, plan_memory
from heliograph.runtime.program import Program, Shape
from heliograph.runtime.staging import InPlace, Staged, Staging, Target

Ready = Literal["all", "first"] | Sequence[tuple[str, Shape]]


class Phases:
    """Wall time of each phase in nanoseconds, in order, and what was done to the weights in them."""

    def __init__(self) -> None:
        self.times: dict[str, int] = {}
        self.staged = Staged(0, 0)
        self._start = time.perf_counter_ns()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter_ns()
        yield
        self.times[name] = self.times.get(name, 0) + time.perf_counter_ns() - start

    def total(self) -> None:
        self.times["total"] = time.perf_counter_ns() - self._start


def load(
    verified: VerifiedCore,
    *,
    device: Device | None = None,
    workers: int = 0,
    index: int = 0,
    units: int | None = None,
    memory: int | None = None,
    ready: Ready = "all",
    threads: int = 0,
    check: bool = True,
) -> Program:
    """Loads a core. ``verified`` stays the caller's, who may close it once this has returned.

    device: where to load; left out, a device of the core's kind that the program owns: a host device with ``workers``
    kernel threads, or the CUDA device number ``index``.
    units: units of growing state (KV blocks); left out, what the core can use at once or, if less, what fits.
    memory: bytes that may be used, as far as the device has them, and on the host the control group and the machine
    have them left; left out, what there is. Given without ``units``, all that fits becomes units.
    ready: buckets that are built and self-tested now: "all", "first" (the smallest and the largest of each entry) or
    a list of (entry, shape). The others are before their first run.
    threads: that read weights; 0 for one a processor, at most eight.
    check: False leaves out chunk digests and self-tests, to measure what they cost. It has no other use.

    Raises UsageError, TargetError, DriverError (no CUDA driver), AddressTakenError, OutOfMemoryError, ModuleError,
    TamperedError, SelfTestError.
    """
    for name, number in {"workers": workers, "index": index, "threads": threads}.items():
        if not 0 <= number < 1 << 31:
            raise UsageError(
                f"loading {verified.name}", found=f"{name}={number}", required="0 or a positive number below 2^31",
                hint="0, as if left out, is right for most",
            )  # fmt: skip
    phases = Phases()
    with ExitStack() as undo:
        own = None
        if device is None:
            with phases("device"):
                device = own = _open(verified.core, workers, index)
            undo.callback(own.close)
        first = first_buckets(verified.core, ready)
        loaded = assemble(
            verified, device, phases, undo, first=first, units=units, memory=memory, threads=threads, check=check
        )
        program = Program(loaded, own_device=own, tested=not check)
        with phases("self-tests"):
            for bucket in first:
                program.prepare(bucket.entry, **bucket.shape)
            state_period.cache_clear()
        phases.total()
        program.open(phases.times, phases.staged)
        undo.pop_all()
        return program


def _open(core: Core, workers: int, index: int) -> Device:
    if core.target.device == "host":
        if index:
            raise UsageError(
                "opening a device", found=f"the number {index} of a CUDA device", required="none for a host core",
                hint="leave the number out (--device on the command line), or load a core that is for CUDA",
            )  # fmt: skip
        check_target(core.target, this_host())
        return open_host(workers=workers)
    from heliograph.device.open import open_device  # noqa: PLC0415 - a host pays for nothing of it

    return open_device(core.target.device, index=index)


def assemble(
    verified: VerifiedCore,
    device: Device,
    phases: Phases,
    undo: ExitStack,
    *,
    first: Sequence[ChosenBucket] = (),
    units: int | None = None,
    memory: int | None = None,
    threads: int = 0,
    check: bool = True,
    read_only: Sequence[str] = READ_ONLY,
    one_at_a_time: bool = False,
) -> Loaded:
    """Memory with its contents, functions, and the graphs of the ``first`` buckets. ``undo`` gives it all back.

    one_at_a_time: never more than one graph will be instantiated, so that memory is left for one alone.
    """
    core = verified.core
    machine = machine_of(device)
    check_target(core.target, machine)
    if notice := other_model(verified.provenance, machine):
        warnings.warn(notice, stacklevel=3)
    with phases("reserve"):
        regions = Memory(device, core, verified.name)
        undo.callback(regions.close)
    with phases("map"):
        taken = NO_OVERHEAD
        if isinstance(device, CudaDevice):
            from heliograph.runtime.cuda import overhead, set_limits  # noqa: PLC0415 - a host pays for nothing of it

            set_limits(device, core)
            taken = overhead(device, core, threads)
        plan = plan_memory(
            core,
            budget=memory_budget(device, memory),
            granularity=device.granularity,
            units=units,
            fill=memory is not None,
            one_at_a_time=one_at_a_time,
            overhead=taken,
        )
        regions.map(plan)
    staging = Staging(verified, core.weights, staging_target(device, regions, core), threads=threads, check=check)
    undo.callback(staging.abandon)
    staging.start()
    with phases("modules"):
        functions = load_functions(device, verified)
    loaded = Loaded(device, verified, regions, plan, Catalogue(device, core, verified.columns, functions))
    undo.callback(loaded.close)
    undo.callback(staging.abandon)  # before the memory that it writes to goes
    with phases("contents"):
        for role in ("constants", "persistent", "scratch"):
            loaded.restore_initial(role)
    with phases("graphs"):
        for bucket in first:
            for graph in bucket.graphs:
                loaded.catalogue.executable(graph)
    with phases("weights"):  # they are read from "modules" on; this is what is left to wait for
        phases.staged = staging.finish()
    regions.protect(read_only)
    return loaded


def staging_target(device: Device, regions: Memory, core: Core) -> Target:
    """The weights region, for staging threads."""
    if not core.weights.size:
        return InPlace(memoryview(bytearray()))
    if not isinstance(device, CudaDevice):
        return InPlace(regions.view("weights", 0, core.weights.size))
    from heliograph.runtime.pinned import Pinned  # noqa: PLC0415 - a host pays for nothing of it

    return Pinned(device, regions.region("weights"))


def load_functions(device: Device, verified: VerifiedCore) -> list[Function]:
    """The core's functions, in its order, each compared with what the core says of it."""
    core = verified.core
    raise_descriptor_limit(len(core.modules))
    modules: list[Module] = []
    for record in core.modules:
        module = load_module(device, record.blob, verified.blob(record.blob))
        _expect(f"loading module {record.family}", "level", module.level, core.target.arch)
        _expect(f"loading module {record.family}", "kernel ABI", module.abi, core.target.abi)
        _expect(f"loading module {record.family}", "family", module.family or record.family, record.family)
        modules.append(module)
    functions = []
    for stated in core.functions:
        function = modules[stated.module].function(stated.name)
        doing = f"looking up kernel {stated.name}"
        _expect(doing, "bytes of parameters", function.param_bytes, stated.param_bytes)
        _expect(doing, "pointers", tuple(function.pointer_offsets), stated.pointers)
        functions.append(function)
    if isinstance(device, CudaDevice):
        from heliograph.runtime.cuda import check_local_memory, raise_attributes, restore_globals  # noqa: PLC0415

        check_local_memory(device, functions)
        restore_globals(modules, verified)
        raise_attributes(functions, verified.columns)
    return functions


def _expect(doing: str, what: str, found: object, required: object) -> None:
    if found != required:
        raise ModuleError(
            doing,
            found=f"{what} {found!r}",
            required=f"{required!r}, as the core states",
            hint="capture the core again",
        )


class ChosenBucket(msgspec.Struct, frozen=True):
    """A bucket that a load makes ready."""

    entry: str
    shape: Shape
    graphs: tuple[int, ...]


def first_buckets(core: Core, ready: Ready) -> list[ChosenBucket]:
    """The buckets to make ready, in the order of the core or of the list."""
    if isinstance(ready, str):
        if ready not in ("all", "first"):
            raise _unknown(f"ready={ready!r}", "all, first or a list of (entry, shape)")
        return [
            _chosen(entry.name, bucket)
            for entry in core.entries
            for bucket in (entry.buckets if ready == "all" else dict.fromkeys((entry.buckets[0], entry.buckets[-1])))
        ]
    known = {(entry.name, frozenset(bucket.shape)): bucket for entry in core.entries for bucket in entry.buckets}
    chosen = []
    for name, shape in ready:
        found = known.get((name, frozenset(shape.items())))
        if found is None:
            raise _unknown(f"bucket {dict(shape)} of {name!r}", "buckets of the core")
        chosen.append(_chosen(name, found))
    return chosen


def _chosen(entry: str, bucket: Bucket) -> ChosenBucket:
    return ChosenBucket(entry, dict(bucket.shape), tuple(segment.graph for segment in bucket.segments))


def _unknown(found: str, required: str) -> UsageError:
    return UsageError("choosing what a load makes ready", found=found, required=required, hint="see the core's entries")
