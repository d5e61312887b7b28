"""The census: every word of every kernel parameter is a pointer of ours, a number, or left-over bytes; else refused.

``exact_census`` compares two captures made in two slots: what moved by the distance between the slots is a pointer.
``range_census`` has one capture only, and goes by where a word would point. docs/census.md has all rules.

Pure: it takes what was recorded and the buffers, and asks ``known`` whose an address is. No device, no torch.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Final

from heliograph.capture.classify import Classifier, Doubt, Known, NodeCensus, kernel_name
from heliograph.capture.contents import ContentPointer, Difference, compare_content, search_content
from heliograph.capture.owned import Owned
from heliograph.capture.words import RecordedNode, RecordedNodes, Words
from heliograph.core.format import SLOT_STRIDE
from heliograph.core.templates import KIND_COPY, KIND_MEMSET
from heliograph.errors import CaptureError, UsageError

PRINTED: Final = 20  # ambiguous words in `lines`


@dataclass(frozen=True, slots=True)
class Census:
    """What was found. ``graphs`` has a NodeCensus for each node, in the order of the words.

    ``unstable`` are (role, offset, size) of content that differs between the captures and holds no pointer there: it is
    kept as the first capture has it.
    """

    exact: bool
    graphs: tuple[tuple[NodeCensus, ...], ...]
    content: tuple[ContentPointer, ...]
    unstable: tuple[Difference, ...]
    doubts: tuple[Doubt, ...]
    classes: dict[str, int]  # words of each class; of left-overs: ranges
    zeroed_bytes: int
    nanoseconds: int
    in_range: tuple[int, int] | None = None  # what range mode makes of the same words: see ``compare_modes``

    def lines(self) -> list[str]:
        """For printing."""
        nodes = sum(len(graph) for graph in self.graphs)
        mode = "exact" if self.exact else "range mode"
        counts = " · ".join(f"{name} {count}" for name, count in self.classes.items())
        lines = [
            f"census ({mode}): {len(self.graphs)} graphs, {nodes} nodes, {self.nanoseconds / 1e6:.0f} ms",
            f"  words: {counts}",
        ]
        if self.in_range is not None:
            alarms, missed = self.in_range
            lines.append(f"  range mode alone: {alarms} false alarms, {missed} pointers missed")
        if self.zeroed_bytes:
            lines.append(f"  left-over bytes, replayed as zeros: {self.zeroed_bytes}")
        if self.content:
            lines.append(f"  pointers in content: {len(self.content)}")
        if self.unstable:
            size = sum(size for _, _, size in self.unstable)
            lines.append(f"  content that differs between the captures: {size} bytes in {len(self.unstable)} places")
        lines += [f"  ambiguous: {doubt}" for doubt in self.doubts[:PRINTED]]
        if len(self.doubts) > PRINTED:
            lines.append(f"  ambiguous: {len(self.doubts) - PRINTED} more")
        return lines


def compare_modes(exact: Sequence[Sequence[NodeCensus]], ranged: Sequence[Sequence[NodeCensus]]) -> tuple[int, int]:
    """(false alarms, missed): pointers that only range mode sees, and pointers that it does not see, of one capture."""
    alarms = missed = 0
    for exact_graph, ranged_graph in zip(exact, ranged, strict=True):
        for truth, guess in zip(exact_graph, ranged_graph, strict=True):
            alarms += len(set(guess.refs) - set(truth.refs))
            missed += len(set(truth.refs) - set(guess.refs))
    return alarms, missed


def exact_census(first: Words, second: Words, owned: Owned, known: Known) -> Census:
    """``first`` is the capture that is kept, ``owned`` its buffers, ``known`` answers for its process.

    CaptureError when the two are not the same capture; AddressMovedError for an address of ours that is another place
    in the second; ForeignMemoryError for one of memory that is not ours.
    """
    begin = time.perf_counter_ns()
    _check_slot(first, owned)
    if first.slot == second.slot:
        raise _usage(f"two captures in slot {first.slot}", "two slots", "capture the second time in another slot")
    work = Classifier(owned, known, (second.slot - first.slot) * SLOT_STRIDE)
    for graph, twin in zip_longest(first.graphs, second.graphs):
        _check_same(graph, twin)
        work.graph(graph, twin)
    content: list[ContentPointer] = []
    unstable: list[Difference] = []
    for role in dict.fromkeys((*first.content, *second.content)):
        ones, twos = first.content.get(role, ()), second.content.get(role, ())
        pointers, other = compare_content(role, ones, twos, work.step, owned, known)
        content += pointers
        unstable += other
    found = _result(work, begin, content, unstable)
    ranged = _in_range(first, owned, lambda address: None)  # what is foreign was refused by now
    return replace(found, in_range=compare_modes(found.graphs, ranged.graphs))


def range_census(first: Words, owned: Owned, known: Known) -> Census:
    """One capture only: a word in our slot is taken for a pointer if it leads into a buffer and is aligned as one.

    ForeignMemoryError for a word that the driver knows as an allocation and that is aligned as a pointer.
    """
    begin = time.perf_counter_ns()
    _check_slot(first, owned)
    work = _in_range(first, owned, known)
    content = [pointer for role, kept in first.content.items() for pointer in search_content(role, kept, owned)]
    return _result(work, begin, content, [])


def _in_range(first: Words, owned: Owned, known: Known) -> Classifier:
    work = Classifier(owned, known, 0)
    for graph in first.graphs:
        work.graph(graph, None)
    return work


def _result(work: Classifier, begin: int, content: Sequence[ContentPointer], unstable: Sequence[Difference]) -> Census:
    return Census(
        exact=work.step != 0,
        graphs=tuple(work.graphs),
        content=tuple(content),
        unstable=tuple(unstable),
        doubts=tuple(work.doubts),
        classes=dict(work.classes),
        zeroed_bytes=work.zeroed_bytes,
        nanoseconds=time.perf_counter_ns() - begin,
    )


# ---- what has to be equal ----------------------------------------------------------------------------------------
def _check_slot(first: Words, owned: Owned) -> None:
    if first.slot != owned.slot:
        raise _usage(
            f"words of slot {first.slot}, buffers of slot {owned.slot}",
            "one slot",
            "hand in one capture's words and buffers",
        )


def _check_same(graph: RecordedNodes | None, twin: RecordedNodes | None) -> None:
    if graph is None or twin is None or graph.name != twin.name:
        names = [f"graph {one.name!r}" if one is not None else "no further graph" for one in (graph, twin)]
        raise _not_the_same(*names)
    if len(graph.nodes) != len(twin.nodes):
        raise _not_the_same(*(f"{len(one.nodes)} nodes in graph {one.name!r}" for one in (graph, twin)))
    for number, (node, other) in enumerate(zip(graph.nodes, twin.nodes, strict=True)):
        if _launch(node) != _launch(other):
            place = f"node {number} of graph {graph.name!r}"
            raise _not_the_same(*(f"{place}: {_described(one)}" for one in (node, other)))


def _launch(node: RecordedNode) -> tuple[object, ...]:
    """What two captures have in common of a node."""
    kernel = node.kernel
    if kernel is None:
        return node.kind, node.size, node.form
    return (
        node.kind, kernel.function, kernel.image, kernel.grid, kernel.block, kernel.shared, kernel.layout,
        len(kernel.params),
    )  # fmt: skip


def _described(node: RecordedNode) -> str:
    kernel = node.kernel
    if kernel is None:
        what = {KIND_MEMSET: "memset", KIND_COPY: "copy"}.get(node.kind, f"a node of kind {node.kind}")
        return f"{what} of {node.size} bytes {node.form} ({node.origin})"
    launch = (
        f"grid {kernel.grid}, block {kernel.block}, {kernel.shared} bytes shared, {len(kernel.params)} of parameters"
    )
    return f"{kernel_name(kernel)}, {launch} ({node.origin})"


def _usage(found: str, required: str, hint: str) -> UsageError:
    return UsageError("taking the census", found=found, required=required, hint=hint)


def _not_the_same(one: str, two: str) -> CaptureError:
    return CaptureError(
        "comparing two captures of the model",
        found=f"the model does not capture the same twice: {one} in the first capture, {two} in the second",
        required="the same graphs, nodes, kernels and launches in both",
        hint="fix what the model draws, measures or tunes while it is captured; its factory has to build one model",
    )
