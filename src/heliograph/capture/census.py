"""The census: every word of every kernel parameter is a pointer of ours, a number, or left-over bytes; else refused.

``exact_census`` compares two captures made in two slots: what moved by the distance between the slots is a pointer.
``range_census`` has one capture only, and goes by where a word would point. docs/census.md has all rules.

Pure: it takes what was recorded and the buffers, and asks ``known`` whose an address is. No device, no torch.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final

from heliograph.capture.contents import ContentPointer, compare_content, search_content
from heliograph.capture.owned import HIGHEST, LOWEST, Asker, Owned, Spot
from heliograph.capture.words import RecordedKernel, RecordedNode, RecordedNodes, Words
from heliograph.core.format import SLOT_STRIDE
from heliograph.core.templates import KIND_COPY, KIND_MEMSET, Ref
from heliograph.errors import AddressMovedError, CaptureError, ForeignMemoryError, UsageError

# Whose allocation an address lies in, in words; None where the driver knows none. "global NAME of image DIGEST" for a
# variable of a module.
Known = Callable[[int], str | None]

TO: Final = 0  # `Ref.at` of the destination of a memset or copy
FROM: Final = 8  # `Ref.at` of a copy's source

# An equal word, or any word in range mode, is refused as a foreign pointer only where a compiler puts a pointer, and if
# its high half is no likely count or extent. Else it is listed.
LIKELY: Final = 1 << 40
POINTER_ALIGNMENT: Final = 8

CLASSES: Final = {
    "weights": "weight",
    "constants": "constant",
    "persistent": "persistent",
    "state": "state",
    "scratch": "scratch",
    "io": "input/output",
    "windows": "window",
}
NUMBER, LEFT_OVER, AMBIGUOUS = "number", "left-over", "ambiguous"
OTHER_CLASSES: Final = ("module global", NUMBER, LEFT_OVER, AMBIGUOUS)  # a module global is refused: always 0
PRINTED: Final = 20  # ambiguous words in `lines`
_ENDPOINTS: Final = {TO: "the destination of a copy", FROM: "the source of a copy"}
_ROLES: Final = ("constants", "persistent")  # whose content is kept by value


@dataclass(frozen=True, slots=True)
class NodeCensus:
    """A node's pointers by ``at``, and the (offset, size) of parameter bytes that the caller replaces by zeros."""

    refs: tuple[Ref, ...] = ()
    zeroed: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Doubt:
    """An ambiguous word: kept as it is, without a reference. ``buffer`` is the one it may be meant for, or -1."""

    graph: str
    node: int
    where: str  # kernel, parameter, byte, origin
    at: int  # byte offset in the parameters
    word: int
    why: str
    buffer: int = -1
    offset: int = 0  # may be negative or beyond the buffer's end

    def __str__(self) -> str:
        return f"{self.word:#x} in {self.where}, node {self.node} of {self.graph}: {self.why}"


@dataclass(frozen=True, slots=True)
class Census:
    """What was found. ``graphs`` has a NodeCensus for each node, in the order of the words.

    ``unstable`` are (role, offset, size) of content that differs between the captures and holds no pointer there: it is
    kept as the first capture has it.
    """

    exact: bool
    graphs: tuple[tuple[NodeCensus, ...], ...]
    content: tuple[ContentPointer, ...]
    unstable: tuple[tuple[str, int, int], ...]
    doubts: tuple[Doubt, ...]
    classes: dict[str, int]  # words of each class; of left-overs: ranges
    zeroed_bytes: int
    nanoseconds: int

    def lines(self) -> list[str]:
        """For printing."""
        nodes = sum(len(graph) for graph in self.graphs)
        mode = "exact" if self.exact else "range mode"
        counts = " · ".join(f"{name} {count}" for name, count in self.classes.items())
        lines = [
            f"census ({mode}): {len(self.graphs)} graphs, {nodes} nodes, {self.nanoseconds / 1e6:.0f} ms",
            f"  words: {counts}",
        ]
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


def compare_modes(exact: Census, ranged: Census) -> tuple[int, int]:
    """(false alarms, missed): pointers that only range mode sees, and pointers that it does not see, of one capture."""
    alarms = missed = 0
    for exact_graph, ranged_graph in zip(exact.graphs, ranged.graphs, strict=True):
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
    work = _Work(owned, known, (second.slot - first.slot) * SLOT_STRIDE)
    for graph, twin in zip_longest(first.graphs, second.graphs):
        _check_same(graph, twin)
        work.graph(graph, twin)
    content: list[ContentPointer] = []
    unstable: list[tuple[str, int, int]] = []
    for role in _ROLES:
        pointers, other = compare_content(role, getattr(first, role), getattr(second, role), work.step, owned, known)
        content += pointers
        unstable += other
    return work.result(begin, content, unstable)


def range_census(first: Words, owned: Owned, known: Known) -> Census:
    """One capture only: a word in our slot is taken for a pointer if it leads into a buffer and is aligned as one.

    ForeignMemoryError for a word that the driver knows as an allocation and that is aligned as a pointer.
    """
    begin = time.perf_counter_ns()
    _check_slot(first, owned)
    work = _Work(owned, known, 0)
    for graph in first.graphs:
        work.graph(graph, None)
    content = [pointer for role in _ROLES for pointer in search_content(role, getattr(first, role), owned)]
    return work.result(begin, content, [])


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
    return f"{_name(kernel)}, {launch} ({node.origin})"


# ---- layouts -----------------------------------------------------------------------------------------------------
class _Layout:
    """What the parameters of a function are, worked out once for all nodes that launch it."""

    def __init__(self, kernel: RecordedKernel, doing: str) -> None:
        self.params = sorted((offset, size) for offset, size in kernel.layout if size)
        self.gaps: list[tuple[int, int]] = []  # bytes of no parameter
        end = 0
        for offset, size in [*self.params, (len(kernel.params), 0)]:
            if offset < end or (size == 0 and not self.params and offset):
                raise CaptureError(
                    doing,
                    found=f"parameters at {kernel.layout} in {len(kernel.params)} bytes",
                    required="parameters that do not overlap and lie in these bytes",
                    hint="the layout has to be what the driver states about this very function",
                )
            if offset > end:
                self.gaps.append((end, offset - end))
            end = offset + size
        # Words at every 4-byte offset in each parameter; a parameter too short for one counts as one number.
        self.numbers = sum(max(1, size // 4 - 1) for _, size in self.params)
        self.words = (_words(self.params, 0), _words(self.params, 4))

    def unused(self, params: bytes) -> list[tuple[int, int]]:
        """Gaps that are not zero."""
        return [(at, size) for at, size in self.gaps if params.count(0, at, at + size) != size]


def _words(params: Sequence[tuple[int, int]], phase: int) -> struct.Struct:
    """Reads every other word of all parameters, the first at ``phase``."""
    text, end = ["<"], 0
    for offset, size in params:
        count = max(0, size - phase) // 8
        if count:
            text.append(f"{offset + phase - end}x{count}Q")
            end = offset + phase + count * 8
    return struct.Struct("".join(text))


# ---- the walk over all nodes -------------------------------------------------------------------------------------
@dataclass(slots=True)
class _Site:
    """A node under the census, and what was found in it so far."""

    graph: str
    number: int
    node: RecordedNode
    refs: list[Ref] = field(default_factory=list)
    zeroed: list[tuple[int, int]] = field(default_factory=list)

    def result(self) -> NodeCensus:
        return NodeCensus(tuple(self.refs), tuple(sorted(self.zeroed)))

    def asker(self) -> Asker:
        return Asker(self.graph, self.node.path, self.node.given)

    def where(self, at: int) -> str:
        """Kernel, parameter and byte at ``at``, and what recorded it."""
        kernel, origin = self.node.kernel, self.node.origin or "an unknown line"
        if kernel is None:
            what = "the memory filled" if self.node.kind == KIND_MEMSET else _ENDPOINTS[at]
            return f"{what} ({origin})"
        for index, (offset, size) in enumerate(kernel.layout):
            if offset <= at < offset + size:
                place = f"parameter {index} of {_name(kernel)} at byte {at - offset}"
                return f"{place}, byte {at} of all ({origin})"
        return f"byte {at} of the parameters of {_name(kernel)} ({origin})"

    def doing(self) -> str:
        return f"taking the census of node {self.number} of graph {self.graph!r}"


class _Work:
    """A census under way. ``step`` is the distance between the slots, 0 in range mode."""

    def __init__(self, owned: Owned, known: Known, step: int) -> None:
        self.owned, self.known, self.step = owned, known, step
        self.layouts: dict[tuple[tuple[tuple[int, int], ...], int], _Layout] = {}
        self.words: set[int] = set()  # of the graph's parameters
        self.asked: set[int] = set()  # words of all graphs that `known` was asked about
        self.foreign: dict[int, str] = {}  # whose they are
        self.classes: Counter[str] = Counter(dict.fromkeys((*CLASSES.values(), *OTHER_CLASSES), 0))
        self.doubts: list[Doubt] = []
        self.zeroed_bytes = 0
        self.graphs: list[tuple[NodeCensus, ...]] = []

    def result(self, begin: int, content: Sequence[ContentPointer], unstable: Sequence[tuple[str, int, int]]) -> Census:
        return Census(
            exact=self.step != 0,
            graphs=tuple(self.graphs),
            content=tuple(content),
            unstable=tuple(unstable),
            doubts=tuple(self.doubts),
            classes=dict(self.classes),
            zeroed_bytes=self.zeroed_bytes,
            nanoseconds=time.perf_counter_ns() - begin,
        )

    def graph(self, graph: RecordedNodes, twin: RecordedNodes | None) -> None:
        """Classifies the nodes of a graph; ``twin`` is the same graph in the other slot."""
        found = []
        for number, node in enumerate(graph.nodes):
            other = twin.nodes[number] if twin is not None else None
            site = _Site(graph.name, number, node)
            if node.kernel is not None:
                self.kernel(site, node.kernel, other.kernel if other is not None else None)
            elif node.kind in (KIND_MEMSET, KIND_COPY):
                self.endpoint(site, TO, node.address, other.address if other is not None else None)
                if node.kind == KIND_COPY:
                    self.endpoint(site, FROM, node.source, other.source if other is not None else None)
            found.append(site.result())
        self.graphs.append(tuple(found))
        self.refuse_foreign(graph, twin)

    def kernel(self, site: _Site, kernel: RecordedKernel, twin: RecordedKernel | None) -> None:
        layout = self.layout(site, kernel)
        for words in layout.words:
            self.words.update(words.unpack_from(kernel.params))
        self.classes[NUMBER] += layout.numbers
        if layout.gaps:
            site.zeroed += layout.unused(kernel.params)
        if twin is None:
            self.take_in_range(site, kernel.params, layout)
        elif kernel.params != twin.params:
            for offset, size in layout.params:
                one, two = kernel.params[offset : offset + size], twin.params[offset : offset + size]
                if one != two:
                    self.compare(site, offset, one, two)
        self.classes[LEFT_OVER] += len(site.zeroed)
        self.zeroed_bytes += sum(size for _, size in site.zeroed)

    def layout(self, site: _Site, kernel: RecordedKernel) -> _Layout:
        key = (kernel.layout, len(kernel.params))
        layout = self.layouts.get(key)
        if layout is None:
            layout = self.layouts[key] = _Layout(kernel, site.doing())
        return layout

    # ---- exact -----------------------------------------------------------------------------------------------------
    def compare(self, site: _Site, offset: int, one: bytes, two: bytes) -> None:
        """One parameter that differs. An address of ours differs in its high half alone: slots are GiBs apart."""
        count = len(one) // 4
        ones, twos = struct.unpack_from(f"<{count}I", one), struct.unpack_from(f"<{count}I", two)
        taken = [False] * count  # halves that are no part of a number
        differing = [i for i in range(count) if ones[i] != twos[i]]
        for i in differing:
            if i and ones[i - 1] == twos[i - 1] and (twos[i] - ones[i]) << 32 == self.step:
                word = ones[i] << 32 | ones[i - 1]
                if word in self.owned:
                    taken[i - 1] = taken[i] = True
                    self.point(site, offset + 4 * i - 4, word, sure=len(one) == 8)
        rest = [i for i in differing if not taken[i]]
        for low in sorted({low for i in rest for low in (i - 1, i) if 0 <= low < count - 1}):
            if not (taken[low] or taken[low + 1]):
                word, other = (halves[low + 1] << 32 | halves[low] for halves in (ones, twos))
                self.refuse_moved(site, offset + 4 * low, word, other)
        for i in rest:
            taken[i] = True
            _note_differing(site.zeroed, offset, one, two, 4 * i, 4 * i + 4)
        _note_differing(site.zeroed, offset, one, two, 4 * count, len(one))
        self.recount(taken)

    def recount(self, taken: Sequence[bool]) -> None:
        """The words of a parameter were all counted as numbers; those with a half that is taken are none."""
        count = len(taken)
        self.classes[NUMBER] -= sum(taken[i] or taken[i + 1] for i in range(count - 1)) if count > 1 else 1

    def refuse_moved(self, site: _Site, at: int, word: int, other: int) -> None:
        """AddressMovedError for an address of ours in both captures that is not the same place: zeros instead of it
        would hide that the second capture put something elsewhere."""
        if word in self.owned and other - self.step in self.owned:
            raise AddressMovedError(
                site.doing(),
                found=f"{site.where(at)}: {self.owned.describe(word)} in the first capture, "
                f"{self.owned.describe(other - self.step)} in the second (as addresses of the first)",
                required="the same place in both captures",
                hint="memory is handed out in another order each time: look for threads, or for tensors that Python's "
                "garbage collector frees",
            )

    # ---- range mode ------------------------------------------------------------------------------------------------
    def take_in_range(self, site: _Site, params: bytes, layout: _Layout) -> None:
        low, high = self.owned.low, self.owned.high
        if not any(low <= word < high for words in layout.words for word in words.unpack_from(params)):
            return
        for offset, size in layout.params:
            count = size // 4
            halves = struct.unpack_from(f"<{count}I", params, offset)
            taken = [False] * count
            found = [i for i in range(count - 1) if low <= halves[i + 1] << 32 | halves[i] < high]
            for i in sorted(found, key=lambda i: ((offset + 4 * i) % POINTER_ALIGNMENT, i)):
                if taken[i] or taken[i + 1]:
                    continue
                taken[i] = taken[i + 1] = True
                at, word = offset + 4 * i, halves[i + 1] << 32 | halves[i]
                if at % POINTER_ALIGNMENT:
                    self.doubt(site, at, word, f"not aligned as a pointer, but {self.owned.describe(word)}")
                else:
                    self.point(site, at, word, sure=False)
            if found:
                self.recount(taken)
        site.refs.sort(key=lambda ref: ref.at)

    # ---- what was found --------------------------------------------------------------------------------------------
    def point(self, site: _Site, at: int, word: int, *, sure: bool) -> None:
        """A pointer of ours. ``sure``: it fills a parameter, so it cannot be half number, half left-over."""
        spot = self.owned.find(word, site.asker())
        if not spot.why:
            self.refer(site, at, spot)
        elif sure and not spot.near:
            raise _ownerless(site, at, word, spot)
        else:
            self.doubt(site, at, word, spot.why, spot)

    def refer(self, site: _Site, at: int, spot: Spot) -> None:
        site.refs.append(Ref(at, spot.buffer, spot.offset))
        self.classes[CLASSES[self.owned.buffers[spot.buffer].role]] += 1

    def doubt(self, site: _Site, at: int, word: int, why: str, spot: Spot | None = None) -> None:
        buffer, offset = (spot.buffer, spot.offset) if spot is not None else (-1, 0)
        self.doubts.append(Doubt(site.graph, site.number, site.where(at), at, word, why, buffer, offset))
        self.classes[AMBIGUOUS] += 1

    def endpoint(self, site: _Site, at: int, address: int, other: int | None) -> None:
        """Of a memset or a copy: a pointer for certain, with ``size`` bytes to touch."""
        if other is not None:
            if other - address != self.step:
                self.refuse_moved(site, at, address, other)
            if other - address != self.step or address not in self.owned:
                raise _foreign(site, at, address, self.known(address))
        elif address not in self.owned:
            raise _foreign(site, at, address, self.known(address))
        spot = self.owned.find(address, site.asker(), max(1, site.node.size))
        if spot.why:
            raise _ownerless(site, at, address, spot)
        self.refer(site, at, spot)

    # ---- foreign memory --------------------------------------------------------------------------------------------
    def refuse_foreign(self, graph: RecordedNodes, twin: RecordedNodes | None) -> None:
        """Asks whose each word is, once, and refuses or lists those that are an allocation of somebody else."""
        low, high = self.owned.low, self.owned.high
        fresh = {word for word in self.words if LOWEST <= word < HIGHEST and not low <= word < high} - self.asked
        self.asked |= fresh
        self.words.clear()
        for word in fresh:
            description = self.known(word)
            if description is not None:
                self.foreign[word] = description
        if not self.foreign:
            return
        for number, (node, census) in enumerate(zip(graph.nodes, self.graphs[-1], strict=True)):
            if node.kernel is not None:
                other = twin.nodes[number].kernel if twin is not None else None
                site = _Site(graph.name, number, node, list(census.refs))
                self.refuse_foreign_words(site, node.kernel, other)

    def refuse_foreign_words(self, site: _Site, kernel: RecordedKernel, twin: RecordedKernel | None) -> None:
        params, layout = kernel.params, self.layout(site, kernel)
        if not any(word in self.foreign for words in layout.words for word in words.unpack_from(params)):
            return
        pointers = [ref.at for ref in site.refs]
        for offset, size in layout.params:
            for at in range(offset, offset + size - 7, 4):
                word = int.from_bytes(params[at : at + 8], "little")
                if word not in self.foreign or any(abs(at - pointer) < 8 for pointer in pointers):
                    continue
                differs = twin is not None and twin.params[at : at + 8] != params[at : at + 8]
                if differs or (at % POINTER_ALIGNMENT == 0 and word >= LIKELY):
                    raise _foreign(site, at, word, self.foreign[word])
                self.doubt(site, at, word, f"it may be a pointer to {self.foreign[word]}")


def _note_differing(zeroed: list[tuple[int, int]], offset: int, one: bytes, two: bytes, start: int, stop: int) -> None:
    """Adds the bytes that differ from ``start`` to ``stop`` of a parameter; neighbours become one range."""
    for i in range(start, stop):
        if one[i] != two[i]:
            at, size = zeroed[-1] if zeroed else (0, 0)
            if size and at + size == offset + i:
                zeroed[-1] = (at, size + 1)
            else:
                zeroed.append((offset + i, 1))


# ---- errors ------------------------------------------------------------------------------------------------------
def _name(kernel: RecordedKernel) -> str:
    return f"{kernel.function} (image {kernel.image[:12]})"


def _usage(found: str, required: str, hint: str) -> UsageError:
    return UsageError("taking the census", found=found, required=required, hint=hint)


def _not_the_same(one: str, two: str) -> CaptureError:
    return CaptureError(
        "comparing two captures of the model",
        found=f"the model does not capture the same twice: {one} in the first capture, {two} in the second",
        required="the same graphs, nodes, kernels and launches in both",
        hint="fix what the model draws, measures or tunes while it is captured; its factory has to build one model",
    )


def _foreign(site: _Site, at: int, address: int, description: str | None) -> ForeignMemoryError:
    whose = description or "memory that the driver does not know, as that of a plain host tensor"
    if whose.startswith("global "):
        hint = (
            "a variable of a module lies elsewhere after each load: pass its value, or copy it to a buffer of the model"
        )
    else:
        hint = (
            "allocate it in the capture: as a parameter or buffer of the model, or while it runs, on the thread that "
            "captures (other threads' allocations go to PyTorch's default pool)"
        )
    return ForeignMemoryError(
        site.doing(),
        found=f"{site.where(at)}: {address:#x}, a pointer to {whose}",
        required="pointers to memory of the capture only",
        hint=hint,
    )


def _ownerless(site: _Site, at: int, address: int, spot: Spot) -> ForeignMemoryError:
    return ForeignMemoryError(
        site.doing(),
        found=f"{site.where(at)}: {address:#x}, {spot.why}",
        required="a pointer into a buffer, and of growing state into its first unit",
        hint="keep what a graph uses alive while it is captured; units of growing state are found through a table",
    )
