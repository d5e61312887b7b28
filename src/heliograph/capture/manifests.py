"""What must hold before graphs are written, and what must hold besides before they are replayed in this process.

The export manifest needs no executable; the replay manifest asks for one a graph. Each has its own error type, so an
object that may be written and not replayed (a graph retained as a template) passes one and fails the other.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from heliograph._native import Device
from heliograph.capture.owners import refuse_cycles
from heliograph.device.flags import flag_names
from heliograph.device.graph import Graph, Instance
from heliograph.errors import ExportManifestError, ReplayManifestError


class Placed(Protocol):
    """A live buffer, as whoever keeps it states it now."""

    @property
    def address(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def dtype(self) -> str: ...


@dataclass(frozen=True, slots=True)
class CapturedBuffer:
    """A buffer as it was when it was captured, and a weak reference to the object that keeps it."""

    name: str
    address: int
    size: int
    dtype: str
    live: weakref.ref[Placed]

    @classmethod
    def of(cls, name: str, buffer: Placed) -> CapturedBuffer:
        return cls(name, buffer.address, buffer.size, buffer.dtype, weakref.ref(buffer))


@dataclass(frozen=True, slots=True)
class CapturedRegion:
    role: str
    address: int
    size: int


@dataclass(frozen=True, slots=True)
class CapturedGraph:
    """A graph, and what it was when it was captured."""

    graph: Graph
    capture: int
    flags: int
    ranges: tuple[tuple[int, int], ...]  # (address, bytes) of its pools

    @classmethod
    def of(cls, graph: Graph) -> CapturedGraph:
        return cls(graph, graph.capture, graph.flags, _ranges(graph))


@dataclass(frozen=True, slots=True)
class ExportManifest:
    """What is about to be written. Made right after the capture; ``check`` compares it with what is there now.

    Holds its graphs, so a graph that is in a manifest is not collected. It asks for no executable.
    """

    device: Device
    graphs: Mapping[str, CapturedGraph]
    buffers: tuple[CapturedBuffer, ...]
    regions: tuple[CapturedRegion, ...]

    @classmethod
    def of(
        cls,
        device: Device,
        graphs: Iterable[Graph],
        buffers: Iterable[CapturedBuffer] = (),
        regions: Iterable[CapturedRegion] = (),
    ) -> ExportManifest:
        """ExportManifestError for a name that two graphs have."""
        captured: dict[str, CapturedGraph] = {}
        for graph in graphs:
            if graph.name in captured:
                raise ExportManifestError(
                    "making a manifest",
                    found=f"two graphs of the name {graph.name!r}",
                    required="a name of its own for each graph",
                    hint="give a graph its name when it is made: Graph('decode/8')",
                )
            captured[graph.name] = CapturedGraph.of(graph)
        return cls(device, captured, tuple(buffers), tuple(regions))

    def check(self) -> None:
        """ExportManifestError for the first thing that is not as it was captured.

        OwnerCycleError for an owner that has come to hold its graph since.
        """
        if not self.device.alive:
            raise _export_error("the device", "one whose context is gone", "the device of the capture, alive")
        for name, captured in self.graphs.items():
            self._check_graph(f"graph {name!r}", captured)
            refuse_cycles(captured.graph, [*captured.graph.owners, *captured.graph.pools], name=name)
        for buffer in self.buffers:
            self._check_buffer(f"buffer {buffer.name!r}", buffer)

    def _check_graph(self, what: str, captured: CapturedGraph) -> None:
        graph = captured.graph
        if not graph.recorded:
            raise _export_error(what, "one that was reset", "its template, until the last byte is written")
        if graph.capture != captured.capture:
            raise _export_error(what, "a template that was captured later", "the template of this manifest")
        if graph.device is not self.device:
            raise _export_error(what, "a template of another device or context", "one of the manifest's device")
        now = _ranges(graph)
        for piece in captured.ranges:
            if not any(_covers(other, piece) for other in now):
                found = f"a pool whose {piece[1]} bytes at {piece[0]:#x} moved or went"
                raise _export_error(what, found, "the storage of the capture, unmoved")

    def _check_buffer(self, what: str, buffer: CapturedBuffer) -> None:
        live = buffer.live()
        if live is None:
            raise _export_error(what, "one whose owner is gone", "the object that keeps it")
        fields = (
            ("address", f"{live.address:#x}", f"{buffer.address:#x}"),
            ("size", str(live.size), str(buffer.size)),
            ("type", live.dtype, buffer.dtype),
        )
        for field, now, before in fields:
            if now != before:
                raise _export_error(what, f"{field} {now}", f"{field} {before}, as captured")
        place = (buffer.address, buffer.size)
        if not any(_covers((region.address, region.size), place) for region in self.regions):
            found = f"{buffer.size} bytes at {buffer.address:#x}, outside every region"
            raise _export_error(what, found, "a place inside a region")


@dataclass(frozen=True, slots=True)
class ReplayManifest:
    """An export manifest whose graphs can also be replayed in this process.

    ``instances``: the executables to replay with, by graph name; None: each graph's own.
    """

    export: ExportManifest
    instances: Mapping[str, Instance] | None = None

    def check(self) -> None:
        """First as the export manifest, then ReplayManifestError for an executable that is missing or does not fit."""
        self.export.check()
        for name, captured in self.export.graphs.items():
            instance = captured.graph.instance if self.instances is None else self.instances.get(name)
            what = f"graph {name!r}"
            if instance is None:
                raise _replay_error(what, "no executable", "an executable")
            if instance.capture != captured.capture:
                raise _replay_error(what, "an executable made from another template", "one made from its own")
            if instance.executable.flags != captured.flags:
                found = f"an executable with {flag_names(instance.executable.flags)}"
                raise _replay_error(what, found, f"{flag_names(captured.flags)}, as recorded")


def _ranges(graph: Graph) -> tuple[tuple[int, int], ...]:
    return tuple(piece for pool in graph.pools for piece in pool.ranges)


def _covers(outer: tuple[int, int], inner: tuple[int, int]) -> bool:
    return outer[0] <= inner[0] and inner[0] + inner[1] <= outer[0] + outer[1]


def _export_error(what: str, found: str, required: str) -> ExportManifestError:
    hint = "change nothing between the capture and the end of the export, or capture again"
    return ExportManifestError(f"checking {what} before the export", found=found, required=required, hint=hint)


def _replay_error(what: str, found: str, required: str) -> ReplayManifestError:
    hint = 'record with retain="executable", or instantiate the graph with the flags it was recorded with'
    return ReplayManifestError(f"checking {what} before a replay", found=found, required=required, hint=hint)
