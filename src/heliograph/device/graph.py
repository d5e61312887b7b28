"""A recorded graph, its executable if there is one, and what both depend on.

A Graph owns what its nodes point at: the pools and owners bound to it live until ``reset``, or until the Graph is
collected or the interpreter exits. In each case replays that Python started, on any stream, are drained first.
docs/lifecycle.md has the rules.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import count

from heliograph._native import Device, Executable, Stream, Template
from heliograph.device.flags import Flags, flag_names, flags_from_one_source, supported_flags
from heliograph.device.holdings import Holdings, Instance
from heliograph.device.pool import Pool
from heliograph.errors import DeviceError, FlagsError, GraphStateError

__all__ = ["Costs", "Flags", "Graph", "Instance", "Lease"]

_captures = count(1)
_alive: weakref.WeakSet[Holdings] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Costs:
    """What executables take, in bytes."""

    executables: int
    device_bytes: int
    host_bytes: int


class Graph:
    """A graph of one device. Made empty; ``record_export_graph`` fills it.

    ``flags`` are those to launch it with. Any thread may launch.
    """

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self._flags = 0
        self._capture = 0
        self._reset = False
        self._holdings = Holdings(name)
        _alive.add(self._holdings)
        # Holds what must outlive this object until its replays are over.
        weakref.finalize(self, _collect, self._holdings)  # holds: R4 tests/device/test_graph.py::test_collection_drains
        _drain_at_exit()  # holds: R4 tests/device/test_graph.py::test_exit_drains

    # ---- recording ----
    def bind(self, *, pools: Iterable[Pool], owners: Iterable[object]) -> None:
        """Takes hold of what the nodes will point at, before there are any. GraphStateError if the graph is in use."""
        if self.recorded or self._holdings.pools or self._holdings.owners:
            raise GraphStateError(
                f"recording graph {self.name!r}",
                found="a graph that holds a recording",
                required="an empty graph, or one that was reset",
                hint="call reset() first, or record into a new graph",
            )
        self._holdings.bind(tuple(pools), tuple(owners))

    def adopt(self, template: Template, flags: int) -> None:
        """Takes over a template that was just captured. ``flags`` are those to launch it with."""
        self._flags = supported_flags(flags, f"recording graph {self.name!r}")
        self._holdings.template = template
        self._capture = next(_captures)
        self._reset = False

    @property
    def recorded(self) -> bool:
        return self._holdings.template is not None

    @property
    def was_reset(self) -> bool:
        return self._reset

    @property
    def capture(self) -> int:
        """Number of the capture that made the template, unique in this process; 0 while there was none."""
        return self._capture

    @property
    def template(self) -> Template:
        """The captured template itself, not a copy. GraphStateError if there is none."""
        template = self._holdings.template
        if template is None:
            raise GraphStateError(
                f"using graph {self.name!r}",
                found="a graph that was reset" if self._reset else "a graph that was never recorded",
                required="a recorded graph",
                hint="record it, and keep it until its last byte is written",
            )
        return template

    @property
    def device(self) -> Device:
        return self.template.device

    @property
    def flags(self) -> int:
        """The flags it was recorded with."""
        return self._flags

    @property
    def pools(self) -> tuple[Pool, ...]:
        return self._holdings.pools

    @property
    def owners(self) -> tuple[object, ...]:
        return self._holdings.owners

    def encoder_flags(self) -> int:
        """The flags to write down: a live executable's, else those recorded. FlagsError if the two disagree."""
        doing = f"encoding the flags of graph {self.name!r}"
        live = self._holdings.instance
        flags = flags_from_one_source(
            doing,
            executable=live.executable if live is not None else None,
            value=self._flags if live is None else None,
        )
        if flags != self._flags:
            raise FlagsError(
                doing,
                found=f"an executable with {flag_names(flags)}, a recording with {flag_names(self._flags)}",
                required="the same flags in both",
                hint="record the graph with the flags that it is to be launched with",
            )
        return flags

    # ---- replaying in this process ----
    def instantiate(self, flags: int | None = None) -> Graph:
        """Makes the executable, with the recorded flags unless others are given, and returns this graph.

        OutOfMemoryError leaves no executable behind; pools and owners stay bound.
        """
        doing = f"instantiating graph {self.name!r}"
        if self._holdings.instance is not None:
            raise GraphStateError(
                doing,
                found="an executable",
                required="a graph without one",
                hint="launch the one it has, or reset and record again",
            )
        wanted = supported_flags(self._flags if flags is None else flags, doing)
        executable = self.template.instantiate(wanted)
        if executable.flags != wanted:
            found = flag_names(executable.flags)
            executable.close()
            raise FlagsError(
                doing,
                found=f"an executable that says {found}",
                required=flag_names(wanted),
                hint="update the driver: it did not keep the flags it was given",
            )
        self._holdings.instance = Instance(executable, self._capture)
        return self

    @property
    def instance(self) -> Instance | None:
        """The executable with the number of its capture, or None for a graph retained as a template."""
        return self._holdings.instance

    @property
    def costs(self) -> Costs:
        instance = self._holdings.instance
        if instance is None:
            return Costs(0, 0, 0)
        return Costs(1, instance.executable.device_bytes, instance.executable.host_bytes)

    def launch(self, stream: Stream) -> None:
        instance = self._holdings.enter()
        try:
            instance.executable.launch(stream)
        finally:
            self._holdings.leave()

    @property
    def in_flight(self) -> int:
        """Replays submitted and not yet finished, over all streams."""
        instance = self._holdings.instance
        return instance.executable.in_flight if instance is not None else 0

    def drain(self) -> None:
        """Returns when no replay that was started through this object is in flight."""
        self._holdings.drain()

    def lease(self) -> Lease:
        """Lends the executable to native code that launches it without this object knowing."""
        return Lease(self, self._holdings.lend())

    def reset(self) -> None:
        """Drains, then lets go of executable, template, owners and pools. The graph may be recorded again.

        GraphStateError if a lease was not drained; then nothing is let go.
        """
        recorded = self.recorded
        try:
            self._holdings.release()
        finally:
            self._reset = self._reset or (recorded and not self.recorded)


class Lease:
    """A native replayer's hold on an executable. It launches ``executable.handle`` by itself.

    It must ``drain`` when it has stopped. While the lease is out the graph cannot be reset. If it is never drained, the
    graph's memory is never freed.
    """

    def __init__(self, graph: Graph, instance: Instance) -> None:
        self._graph = graph
        self._instance: Instance | None = instance

    @property
    def executable(self) -> Executable:
        if self._instance is None:
            raise GraphStateError(
                f"replaying graph {self._graph.name!r}",
                found="a lease that was drained",
                required="a lease that is out",
                hint="take another with lease()",
            )
        return self._instance.executable

    def drain(self) -> None:
        """Waits for all work of the device, whoever submitted it, and ends the lease. Idempotent.

        The replayer must have stopped launching.
        """
        if self._instance is None:
            return
        self._graph.device.synchronize()  # holds: R4 tests/device/test_graph.py::test_lease_drain_waits
        self._instance = None
        self._graph._holdings.give_back()


def _collect(holdings: Holdings) -> None:
    """The finaliser of a Graph. What it raises reaches sys.unraisablehook, at interpreter exit sys.excepthook."""
    try:
        holdings.release()
    finally:
        if holdings.template is not None:
            _keep(holdings)  # holds: R4 tests/device/test_graph.py::test_forgotten_lease_keeps_memory


def _keep(holdings: Holdings) -> None:
    """Keeps it beyond the end of the interpreter: someone may still launch, and memory under work is not freed."""
    import ctypes  # noqa: PLC0415 - some milliseconds, for a case that should not happen

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(holdings))


@cache
def _drain_at_exit() -> None:
    """Registered behind weakref's own exit hook and so run before it, ahead of every other finaliser: whatever order
    those run in, they find no replay running."""
    atexit.register(_drain_all)


def _drain_all() -> None:
    for holdings in list(_alive):
        try:
            holdings.stop()
        except DeviceError:
            continue  # met again, and reported, when the graph is finalised
