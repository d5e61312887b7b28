"""What every word of a node is: each parameter is compared with its twin in the other slot, or looked at alone.

Beneath ``census``, which checks first that two captures are the same nodes.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

from heliograph.capture.owned import HIGHEST, LOWEST, Asker, Owned, Spot
from heliograph.capture.words import RecordedKernel, RecordedNode, RecordedNodes
from heliograph.core.templates import KIND_COPY, KIND_MEMSET, Ref
from heliograph.errors import AddressMovedError, CaptureError, ForeignMemoryError

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
_ENDPOINTS: Final = {TO: "the destination of a copy", FROM: "the source of a copy"}


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
    asker: Asker
    refs: list[Ref] = field(default_factory=list)
    zeroed: list[tuple[int, int]] = field(default_factory=list)

    def result(self) -> NodeCensus:
        return NodeCensus(tuple(self.refs), tuple(sorted(self.zeroed)))

    def where(self, at: int) -> str:
        """Kernel, parameter and byte at ``at``, and what recorded it."""
        kernel, origin = self.node.kernel, self.node.origin or "an unknown line"
        if kernel is None:
            what = "the memory filled" if self.node.kind == KIND_MEMSET else _ENDPOINTS[at]
            return f"{what} ({origin})"
        for index, (offset, size) in enumerate(kernel.layout):
            if offset <= at < offset + size:
                place = f"parameter {index} of {kernel_name(kernel)} at byte {at - offset}"
                return f"{place}, byte {at} of all ({origin})"
        return f"byte {at} of the parameters of {kernel_name(kernel)} ({origin})"

    def doing(self) -> str:
        return f"taking the census of node {self.number} of graph {self.graph!r}"


class Classifier:
    """A census under way, graph by graph. ``step`` is the distance between the slots, 0 in range mode."""

    def __init__(self, owned: Owned, known: Known, step: int) -> None:
        self.owned, self.known, self.step = owned, known, step
        self.names = [CLASSES[buffer.role] for buffer in owned.buffers]
        self.layouts: dict[tuple[tuple[tuple[int, int], ...], int], _Layout] = {}
        self.words: set[int] = set()  # of the graph's parameters
        self.asked: set[int] = set()  # words of all graphs that `known` was asked about
        self.foreign: dict[int, str] = {}  # whose they are
        self.classes: Counter[str] = Counter(dict.fromkeys((*CLASSES.values(), *OTHER_CLASSES), 0))
        self.doubts: list[Doubt] = []
        self.zeroed_bytes = 0
        self.graphs: list[tuple[NodeCensus, ...]] = []

    def graph(self, graph: RecordedNodes, twin: RecordedNodes | None) -> None:
        """Classifies the nodes of a graph; ``twin`` is the same graph in the other slot."""
        found = []
        for number, node in enumerate(graph.nodes):
            other = twin.nodes[number] if twin is not None else None
            site = _Site(graph.name, number, node, Asker(graph.name, node.path, node.given))
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
        if len(one) == 8:  # the usual case
            word, other = int.from_bytes(one, "little"), int.from_bytes(two, "little")
            if other - word == self.step and word in self.owned:
                self.classes[NUMBER] -= 1
                self.point(site, offset, word, sure=True)
                return
            self.refuse_moved(site, offset, word, other)
        count = len(one) // 4
        ones, twos = struct.unpack_from(f"<{count}I", one), struct.unpack_from(f"<{count}I", two)
        taken: set[int] = set()  # halves that are no part of a number
        differing = [i for i in range(count) if ones[i] != twos[i]]
        for i in differing:
            if i and ones[i - 1] == twos[i - 1] and (twos[i] - ones[i]) << 32 == self.step:
                word = ones[i] << 32 | ones[i - 1]
                if word in self.owned:
                    taken |= {i - 1, i}
                    self.point(site, offset + 4 * i - 4, word, sure=False)
        rest = [i for i in differing if i not in taken]
        for i in rest:
            if (offset + 4 * i) % POINTER_ALIGNMENT and _stale(ones[i]) and _stale(twos[i]):
                _note(site.zeroed, offset + 4 * i, 4)
            else:
                _note_differing(site.zeroed, offset, one, two, 4 * i, 4 * i + 4)
        _note_differing(site.zeroed, offset, one, two, 4 * count, len(one))
        self.recount(taken.union(rest), count)

    def recount(self, taken: Set[int], count: int) -> None:
        """All words of a parameter of ``count`` halves were counted as numbers; those with a taken half are none."""
        words = {word for half in taken for word in (half - 1, half) if 0 <= word < count - 1}
        self.classes[NUMBER] -= len(words) if count > 1 else 1

    def refuse_moved(self, site: _Site, at: int, word: int, other: int) -> None:
        """AddressMovedError for a parameter that is an address of ours in both captures, and not the same place. In a
        struct such words are what the stack held before: unused places of a list of tensors, for example."""
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
        """Takes aligned words first, so that of overlapping ones the likelier is the pointer."""
        low, high = self.owned.low, self.owned.high
        if not any(low <= word < high for words in layout.words for word in words.unpack_from(params)):
            return
        for offset, size in layout.params:
            count = size // 4
            halves = struct.unpack_from(f"<{count}I", params, offset)
            taken: set[int] = set()
            words = [halves[i + 1] << 32 | halves[i] for i in range(count - 1)]
            found = [i for i, word in enumerate(words) if low <= word < high and self.owned.used(word)]
            for i in sorted(found, key=lambda i: ((offset + 4 * i) % POINTER_ALIGNMENT, i)):
                if i in taken or i + 1 in taken:
                    continue
                taken |= {i, i + 1}
                at, word = offset + 4 * i, words[i]
                if at % POINTER_ALIGNMENT:
                    self.doubt(site, at, word, f"not aligned as a pointer, but {self.owned.describe(word)}")
                else:
                    self.point(site, at, word, sure=False)
            if found:
                self.recount(taken, count)
        site.refs.sort(key=lambda ref: ref.at)

    # ---- what was found --------------------------------------------------------------------------------------------
    def point(self, site: _Site, at: int, word: int, *, sure: bool) -> None:
        """A pointer of ours. ``sure``: it fills a parameter, so it cannot be half number, half left-over."""
        spot = self.owned.find(word, site.asker)
        if not spot.why:
            self.refer(site, at, spot)
        elif sure and not spot.near:
            raise _ownerless(site, at, word, spot)
        else:
            self.doubt(site, at, word, spot.why, spot)

    def refer(self, site: _Site, at: int, spot: Spot) -> None:
        site.refs.append(Ref(at, spot.buffer, spot.offset))
        self.classes[self.names[spot.buffer]] += 1

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
        spot = self.owned.find(address, site.asker, max(1, site.node.size))
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
                site = _Site(graph.name, number, node, Asker(), list(census.refs))
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


def _stale(half: int) -> bool:
    """Whether this is the upper half of an address of this process, as a stack keeps them: of a heap (0x55, 0x56) or a
    mapping (0x7e, 0x7f). Such addresses are drawn for each process, so that one byte of two may well be the same; taken
    byte by byte, what is kept would differ from one capture to the next."""
    return 0x5500 <= half < 0x5700 or 0x7E00 <= half < 0x8000


def _note_differing(zeroed: list[tuple[int, int]], offset: int, one: bytes, two: bytes, start: int, stop: int) -> None:
    """Adds the bytes that differ from ``start`` to ``stop`` of a parameter; neighbours become one range."""
    for i in range(start, stop):
        if one[i] != two[i]:
            _note(zeroed, offset + i, 1)


def _note(zeroed: list[tuple[int, int]], begin: int, size: int) -> None:
    at, before = zeroed[-1] if zeroed else (0, 0)
    if before and at + before == begin:
        zeroed[-1] = (at, before + size)
    else:
        zeroed.append((begin, size))


# ---- errors ---------------------------------------------------------------------------------------------------------
def kernel_name(kernel: RecordedKernel) -> str:
    """A function and which image it is of."""
    return f"{kernel.function} (image {kernel.image[:12]})"


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
