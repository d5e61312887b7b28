"""``record_export_graph``: one graph from a callable under stream capture, on any device."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Literal, Protocol

from heliograph._native import Template
from heliograph.capture.owners import refuse_cycles
from heliograph.capture.pools import refuse_foreign, refuse_ownerless
from heliograph.device.flags import supported_flags
from heliograph.device.graph import Graph
from heliograph.device.pool import Pool
from heliograph.errors import GraphStateError, HeliographError, UsageError

Retain = Literal["template", "executable"]


class Capturing(Protocol):
    """What captures: a stream of ours, or PyTorch's own stream capture (``cuda.torch_capture``)."""

    @property
    def capturing(self) -> bool: ...

    def begin_capture(self) -> None: ...

    def end_capture(self) -> Template: ...


def record_export_graph(
    fn: Callable[[], object],
    *,
    stream: Capturing,
    pools: Sequence[Pool],
    owners: Sequence[object] = (),
    retain: Retain = "template",
    flags: int = 0,
    graph: Graph | None = None,
) -> Graph:
    """Records what ``fn`` submits to ``stream`` (and to streams that it forks from it) as a graph.

    pools: memory that the nodes may point into; owners: whatever else must live as long as the graph. Both are bound
    before anything is instantiated and live until the graph is reset or collected. flags: those to launch it with.
    retain: "template" creates no executable; "executable" also instantiates, at the cost in ``Graph.costs``.
    graph: an empty graph to record into; without it, a new one.

    If recording fails, nothing stays captured or bound. If instantiating fails, a graph that was handed in keeps its
    recording, pools and owners.

    Raises FlagsError, GraphStateError (graph or stream in use, nothing recorded), OwnerCycleError,
    ForeignMemoryError, OutOfMemoryError, DriverError, and what ``fn`` raises.
    """
    if retain not in ("template", "executable"):
        raise UsageError(
            "recording a graph",
            found=f"retain={retain!r}",
            required='"template" or "executable"',
            hint="template costs nothing; executable replays in this process",
        )
    recording = graph if graph is not None else Graph()
    supported_flags(flags, f"recording graph {recording.name!r}")
    refuse_ownerless(pools, name=recording.name)
    recording.bind(pools=pools, owners=owners)
    try:
        template = _captured(fn, stream, recording.name)
        recording.adopt(template, flags)
        refuse_foreign(template, pools, name=recording.name)
        refuse_cycles(recording, [*owners, *pools], name=recording.name)
    except BaseException:
        recording.reset()
        raise
    if retain == "executable":
        try:
            recording.instantiate()
        except BaseException:
            if graph is None:
                recording.reset()
            raise
    return recording


def _captured(fn: Callable[[], object], stream: Capturing, name: str) -> Template:
    if stream.capturing:
        raise GraphStateError(
            f"recording graph {name!r}",
            found="a stream that is capturing already",
            required="an idle stream",
            hint="end the other capture, or record on a stream of its own",
        )
    with _collector_held_off():
        stream.begin_capture()
        try:
            fn()
        except BaseException:
            with suppress(HeliographError):  # an error of the capture itself must not hide fn's
                stream.end_capture().close()
            raise
        template = stream.end_capture()
    if template.node_count == 0:
        template.close()
        raise GraphStateError(
            f"recording graph {name!r}",
            found="no work on the stream",
            required="at least one launch, copy or fill",
            hint="submit the work to the stream that is handed in, or to one that waits for an event of it",
        )
    return template


@contextmanager
def _collector_held_off() -> Iterator[None]:
    """A collection during a capture may run finalisers, and those may free memory or wait for the device."""
    if not gc.isenabled():
        yield
        return
    gc.disable()  # holds: R4 tests/capture/test_export_graph.py::test_collector_is_held_off
    try:
        yield
    finally:
        gc.enable()
