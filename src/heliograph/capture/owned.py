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
from typing import Final

from heliograph.core.format import SLOT_BASE, SLOT_SPAN, SLOT_STRIDE, region_base, region_span
from heliograph.core.manifest import Buffer

NEAR: Final = 1 << 20  # bytes: a pointer this close to a buffer may be meant for it
LOWEST: Final = 1 << 32  # no allocation lies below 4 GiB,
HIGHEST: Final = 1 << 57  # and no address has more than 57 bits
_BEFORE: Final = 4 << 30  # what lies below a slot may be a pointer biased below its first buffer


@dataclass(frozen=True, slots=True)
class Asker:
    """The node whose pointer is looked up."""

    graph: str = ""
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
    """The buffers of a capture in ``slot``, by index into ``buffers``."""

    def __init__(self, buffers: Sequence[Buffer], slot: int) -> None:
        self.buffers = tuple(buffers)
        self.slot = slot
        start = SLOT_BASE + slot * SLOT_STRIDE
        self.low, self.high = start - _BEFORE, start + SLOT_SPAN
        self._starts = [region_base(slot, buffer.role) + buffer.offset for buffer in self.buffers]
        self._all = _Table(range(len(self.buffers)), self)
        self._graphs: dict[str, _Table] = {}
        self._named: defaultdict[str, list[int]] = defaultdict(list)
        labelled: defaultdict[str, list[int]] = defaultdict(list)
        for index, buffer in enumerate(self.buffers):
            if buffer.role == "scratch":
                path, _, label = buffer.name.rpartition("/")
                labelled[label].append(index)
                self._named[path.rpartition("/")[0]].append(index)
        self._labelled = {label: _Table(indices, self) for label, indices in labelled.items()}
        self._cache: dict[tuple[int, int, str], Spot | None] = {}

    def __contains__(self, address: int) -> bool:
        """Whether it is an address of our slot, or just below."""
        return self.low <= address < self.high

    def address(self, buffer: int) -> int:
        return self._starts[buffer]

    def find(self, address: int, asker: Asker, size: int = 0) -> Spot:
        """The buffer that holds ``size`` bytes at ``address``; with 0 bytes the address may be one past its end."""
        for candidates in (asker.given, self._named.get(f"scratch/{asker.path}", ()) if asker.path else ()):
            spot = self._best(candidates, address, size)
            if spot is not None:
                return spot
        label = asker.graph.rpartition("/")[2]
        key = (address, size, label)
        if key not in self._cache:
            self._cache[key] = self._look_up(address, size, label)
        spot = self._cache[key]
        biased = self._biased(address, asker.given) if asker.given else None
        if spot is not None and biased is None:
            return spot
        return biased or self._odd(address, size)

    def describe(self, address: int) -> str:
        """Where an address of ours lies, in words."""
        spot = self.find(address, Asker())
        if spot.why:
            return f"{address:#x}, {spot.why}"
        return f"{address:#x}, {spot.offset} bytes from the start of {self.buffers[spot.buffer].name!r}"

    # ---- candidates ----------------------------------------------------------------------------------------------
    def _look_up(self, address: int, size: int, label: str) -> Spot | None:
        own = self._labelled.get(label)
        spot = self._best(own.around(address), address, size) if own is not None else None
        return spot or self._best(self._all.around(address), address, size)

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
        if below is not None and self.buffers[below].grows:
            role = self.buffers[below].role
            if address < region_base(self.slot, role) + region_span(role):
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
    """Some buffers, sorted by address. ``_reach`` is the highest end so far: no buffer before ends beyond it."""

    def __init__(self, indices: Iterable[int], owned: Owned) -> None:
        starts = owned._starts
        self._order = sorted(indices, key=lambda index: starts[index])
        self._sorted = [starts[index] for index in self._order]
        self._reach: list[int] = []
        self._furthest: list[int] = []  # the buffer that ends there
        for index in self._order:
            end = starts[index] + owned.buffers[index].size
            if not self._reach or end > self._reach[-1]:
                self._reach.append(end)
                self._furthest.append(index)
            else:
                self._reach.append(self._reach[-1])
                self._furthest.append(self._furthest[-1])

    def around(self, address: int) -> Iterator[int]:
        """All buffers that may hold the address."""
        at = bisect_right(self._sorted, address) - 1
        while at >= 0 and self._reach[at] >= address:
            yield self._order[at]
            at -= 1

    def neighbours(self, address: int) -> tuple[int | None, int | None]:
        """Of an address in no buffer: the one that ends last below it, and the first above it."""
        at = bisect_right(self._sorted, address)
        return self._furthest[at - 1] if at else None, self._order[at] if at < len(self._order) else None
