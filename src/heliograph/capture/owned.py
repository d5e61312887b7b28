"""Whose an address is: the buffers of a capture, found by the addresses that they have in its slot.

Buffers of ``scratch`` overlap, since a range is given to the next tensor when the tensor there has died. Among several
the one counts that the node's op was given, then one named for the op, then one of the node's graph; then the smallest
that holds the address, before one that ends at it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

from heliograph.core.format import SLOT_BASE, SLOT_SPAN, SLOT_STRIDE, region_base
from heliograph.core.manifest import Buffer

NEAR: Final = 1 << 20  # bytes: a pointer this close to a buffer may be meant for it
LOWEST: Final = 1 << 32  # no allocation lies below 4 GiB,
HIGHEST: Final = 1 << 57  # and no address has more than 57 bits
_BEFORE: Final = 4 << 30  # what lies below a slot may be a pointer biased below its first buffer


@dataclass(frozen=True, slots=True)
class Asker:
    """The node whose pointer is looked up: its graph, its op, and the buffers that the op was given."""

    label: str = ""  # as in the names of scratch buffers: scratch/{path}/{what}/{label}
    path: str = ""
    given: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a pointer of ours leads. ``why`` is empty when it leads into its buffer (one past the end included).

    Otherwise ``why`` says what is odd; ``buffer`` is the buffer it seems to be meant for, -1 if none is near, and
    ``offset`` may be negative or beyond the buffer's end.
    """

    buffer: int
    offset: int
    why: str = ""
    near: bool = True  # whether it lies in a buffer, or close enough to one to be meant for it


class Owned:
    """The buffers of a capture in ``slot``, by index into ``buffers``. Of a growing one there are ``units``."""

    def __init__(self, buffers: Sequence[Buffer], slot: int, units: int = 1) -> None:
        self.buffers = tuple(buffers)
        self.slot = slot
        start = SLOT_BASE + slot * SLOT_STRIDE
        self.low, self.high = start - _BEFORE, start + SLOT_SPAN
        self._starts = [region_base(slot, buffer.role) + buffer.offset for buffer in self.buffers]
        ends: dict[str, int] = {}
        for buffer, begin in zip(self.buffers, self._starts, strict=True):
            end = begin + buffer.size * (units if buffer.grows else 1)
            ends[buffer.role] = max(end, ends.get(buffer.role, 0))
        self._used = [(region_base(slot, role), end) for role, end in ends.items()]
        self._all = _Table(range(len(self.buffers)), self)
        self._found: dict[tuple[int, str, str], Spot] = {}  # many nodes point to one place
        self._named: defaultdict[str, list[int]] = defaultdict(list)
        labelled: defaultdict[str, list[int]] = defaultdict(list)
        for index, buffer in enumerate(self.buffers):
            if buffer.role == "scratch":
                path, *graph = buffer.name.rsplit("/", 3)  # scratch/op, out0, decode, 8
                labelled["/".join(graph[1:])].append(index)
                self._named[path].append(index)
        self._labelled = {label: _Table(indices, self) for label, indices in labelled.items()}

    def __contains__(self, address: int) -> bool:
        """Whether it is an address of our slot, or just below."""
        return self.low <= address < self.high

    def used(self, address: int) -> bool:
        """Whether it is an address of memory that buffers lie in. Most high halves that are integers are not."""
        return any(base <= address <= end for base, end in self._used)

    def address(self, buffer: int) -> int:
        return self._starts[buffer]

    def find(self, address: int, asker: Asker, size: int = 0) -> Spot:
        """The buffer that holds ``size`` bytes at ``address``; with 0 bytes the address may be one past its end."""
        if size or asker.given:
            return self._find(address, asker, size)
        key = (address, asker.label, asker.path)
        spot = self._found.get(key)
        if spot is None:
            spot = self._found[key] = self._find(address, asker, 0)
        return spot

    def describe(self, address: int) -> str:
        """Where an address of ours lies, in words."""
        spot = self.find(address, Asker())
        if spot.why:
            return f"{address:#x}, {spot.why}"
        return f"{address:#x}, {spot.offset} bytes from the start of {self.buffers[spot.buffer].name!r}"

    # ---- candidates ----------------------------------------------------------------------------------------------
    def _find(self, address: int, asker: Asker, size: int) -> Spot:
        spot = None
        if asker.given:
            spot = self._best(asker.given, address, size)
        if spot is None and asker.path:
            spot = self._best(self._named.get(f"scratch/{asker.path}", ()), address, size)
        if spot is not None:
            return spot
        spot = self._biased(address, asker.given) if asker.given else None
        return spot or self._look_up(address, asker.label, size) or self._odd(address, size)

    def _look_up(self, address: int, label: str, size: int) -> Spot | None:
        for table in (self._labelled.get(label), self._all):
            if table is not None:
                if size:
                    spot = self._best(table.around(address), address, size)
                else:
                    index = table.holder(address)
                    spot = None if index is None else Spot(index, address - self._starts[index])
                if spot is not None:
                    return spot
        return None

    def _best(self, candidates: Iterable[int], address: int, size: int) -> Spot | None:
        """Inside before one past the end, then the smallest, then the first."""
        best: tuple[bool, int, int] | None = None
        for index in candidates:
            start, length = self._starts[index], self.buffers[index].size
            if start <= address and address + size <= start + length:
                rank = (address == start + length, length, index)
                best = rank if best is None else min(best, rank)
        return None if best is None else Spot(best[2], address - self._starts[best[2]])

    def _biased(self, address: int, given: Sequence[int]) -> Spot | None:
        """The lowest buffer, of those the op was given, that starts a little above an address in none of them."""
        above = [(self._starts[index], index) for index in given if 0 < self._starts[index] - address <= NEAR]
        if not above:
            return None
        start, index = min(above)
        why = f"{start - address} bytes below {self.buffers[index].name!r}, which its op was given"
        return Spot(index, address - start, why)

    def _odd(self, address: int, size: int) -> Spot:
        """For an address in no buffer, or bytes that no buffer holds: what is near."""
        holder = self._best(self._all.around(address), address, 0) if size else None
        if holder is not None:
            buffer = self.buffers[holder.buffer]
            why = f"{size} bytes from byte {holder.offset} of {buffer.name!r} on, which has {buffer.size}"
            return Spot(holder.buffer, holder.offset, why + (" in its first unit" if buffer.grows else ""), near=False)
        below, above = self._all.neighbours(address)
        if below is not None and self.buffers[below].grows:  # the last of its region
            why = f"beyond the first unit of {self.buffers[below].name!r}, whose units are counted at load"
            return Spot(below, address - self._starts[below], why, near=False)
        found = []
        if below is not None:
            end = self._starts[below] + self.buffers[below].size
            found.append((address - end, below, f"{address - end} bytes behind {self.buffers[below].name!r}"))
        if above is not None:
            start = self._starts[above]
            found.append((start - address, above, f"{start - address} bytes below {self.buffers[above].name!r}"))
        close = [entry for entry in found if entry[0] <= NEAR]
        if not close:
            return Spot(-1, 0, "in none of our buffers, and near none", near=False)
        why = ", ".join(entry[2] for entry in close)
        if len(close) == 2:
            return Spot(-1, 0, why)
        return Spot(close[0][1], address - self._starts[close[0][1]], why)


class _Table:
    """Some buffers, sorted by address.

    Worked out once, since every pointer is looked up here: which buffer is the smallest in each stretch between two
    ends or starts (``_points``), and the smallest that ends at a point.
    """

    def __init__(self, indices: Iterable[int], owned: Owned) -> None:
        starts = owned._starts
        self._order = sorted(indices, key=lambda index: starts[index])
        self._sorted = [starts[index] for index in self._order]
        ends = [starts[index] + owned.buffers[index].size for index in self._order]
        self._reach: list[int] = []  # the buffer that ends last, of all up to here
        self._ended: dict[int, tuple[int, int]] = {}
        for index, end in zip(self._order, ends, strict=True):
            furthest = self._reach[-1] if self._reach else index
            self._reach.append(index if end >= starts[furthest] + owned.buffers[furthest].size else furthest)
            rank = (owned.buffers[index].size, index)
            self._ended[end] = min(self._ended.get(end, rank), rank)
        self._points = sorted({*self._sorted, *ends})
        self._smallest: list[int] = []  # -1: none
        active: list[tuple[int, int]] = []  # a heap of (size, index)
        following = 0
        for point in self._points:
            while following < len(self._order) and self._sorted[following] <= point:
                index = self._order[following]
                heappush(active, (owned.buffers[index].size, index))
                following += 1
            while active and starts[active[0][1]] + active[0][0] <= point:
                heappop(active)
            self._smallest.append(active[0][1] if active else -1)
        self._ends = [starts[index] + owned.buffers[index].size for index in self._reach]

    def holder(self, address: int) -> int | None:
        """The smallest buffer that the address lies in, else the smallest that ends there."""
        at = bisect_right(self._points, address) - 1
        if at >= 0 and self._smallest[at] >= 0:
            return self._smallest[at]
        ended = self._ended.get(address)
        return None if ended is None else ended[1]

    def around(self, address: int) -> Iterator[int]:
        """All buffers that may hold the address."""
        at = bisect_right(self._sorted, address) - 1
        while at >= 0 and self._ends[at] >= address:
            yield self._order[at]
            at -= 1

    def neighbours(self, address: int) -> tuple[int | None, int | None]:
        """Of an address in no buffer: the one that ends last below it, and the first above it."""
        at = bisect_right(self._sorted, address)
        return self._reach[at - 1] if at else None, self._order[at] if at < len(self._order) else None
