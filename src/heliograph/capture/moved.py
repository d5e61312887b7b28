"""Whether two runs of a model recorded the same: nothing may move between the first run and the capture.

The first run sees one more unit of growing state than the capture, so equality also shows that nothing depends on how
many there are.
"""

from __future__ import annotations

from itertools import zip_longest

from heliograph.capture.buffers import BufferTable
from heliograph.capture.tape import Launch, Step, masked
from heliograph.capture.walk import Walk
from heliograph.core.manifest import Buffer
from heliograph.errors import AddressMovedError


def check_nothing_moved(before: Walk, after: Walk) -> None:
    """AddressMovedError that names the first buffer or node that differs."""
    for old, new in zip_longest(before.buffers.all, after.buffers.all):
        if old is None or new is None or _described(old, before.buffers) != _described(new, after.buffers):
            raise _moved(
                f"buffer {_told(old, before.buffers)} in the first run and {_told(new, after.buffers)} in the capture"
            )
    for old_graph, new_graph in zip(before.graphs, after.graphs, strict=True):
        for i, (old_step, new_step) in enumerate(zip_longest(old_graph.steps, new_graph.steps)):
            if old_step is None or new_step is None or masked(old_step) != masked(new_step):
                raise _moved(
                    f"node {i} of graph {new_graph.placed.name!r}: {_named(old_step)} in the first run and "
                    f"{_named(new_step)} in the capture"
                )


def _described(buffer: Buffer, table: BufferTable) -> tuple[object, ...]:
    """A buffer without its address where that may differ: weights that are written have a region of their own."""
    kept = buffer.name.startswith("weights/")
    private = buffer.role == "scratch" and buffer.offset >= table.private
    offset = None if kept else buffer.offset - (table.private if private else 0)
    role = "weights" if kept else buffer.role
    return buffer.name, role, private, offset, buffer.size, buffer.dtype, buffer.shape, buffer.grows


def _told(buffer: Buffer | None, table: BufferTable) -> str:
    if buffer is None:
        return "nothing"
    _, _, private, offset, size, *_ = _described(buffer, table)
    return f"{buffer.name!r} ({size} bytes at {offset} of {'private ' if private else ''}{buffer.role})"


def _named(step: Step | None) -> str:
    if step is None:
        return "nothing"
    kind = step.name if isinstance(step, Launch) else type(step).__name__.lower()
    return f"{kind} ({step.origin})"


def _moved(found: str) -> AddressMovedError:
    return AddressMovedError(
        "comparing the capture with the run before it",
        found=found,
        required="the same buffers at the same places and the same nodes in every run",
        hint="the model changes from call to call, or depends on the number of units of growing state; "
        "keep counters in state or buffers, not in Python",
    )
