"""Pointers in what is kept by value, whatever its role, at every 4-byte offset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from heliograph.capture.owned import HIGHEST, LOWEST, Asker, Owned
from heliograph.capture.words import Kept
from heliograph.core.format import region_base
from heliograph.errors import AddressMovedError, CaptureError, ForeignMemoryError

_PAGE: Final = 4096  # bytes compared at a time


@dataclass(frozen=True, slots=True)
class ContentPointer:
    """A pointer at byte ``at`` of a region. ``buffer`` is -1 where it leads into none (or beyond its end)."""

    role: str
    at: int
    buffer: int
    offset: int


Difference = tuple[str, int, int]  # role, offset, size


def compare_content(
    role: str, ones: Kept, twos: Kept, step: int, owned: Owned, known: Callable[[int], str | None]
) -> tuple[list[ContentPointer], list[Difference]]:
    """What moved by ``step``, the distance between the slots, is a pointer; other differences are listed.

    CaptureError if one capture keeps what the other does not, ForeignMemoryError where a difference is a pointer to
    memory that the driver knows and that is not ours, AddressMovedError where it is one of ours to another place.
    """
    pointers: list[ContentPointer] = []
    differences: list[Difference] = []
    for one, two in zip_longest(ones, twos):
        if one is None or two is None or (one[0], len(one[1])) != (two[0], len(two[1])):
            first, second = (f"{len(kept[1])} bytes at {kept[0]}" if kept else "nothing" for kept in (one, two))
            raise CaptureError(
                f"comparing the content of {role} in two captures",
                found=f"{first} in the first and {second} in the second",
                required="the same buffers in both",
                hint="the model does not capture the same twice: look for what depends on the process",
            )
        if one != two:
            found, other = _compare(role, one[0], one[1], two[1], step, owned, known)
            pointers += found
            differences += other
    return pointers, differences


def _compare(
    role: str, base: int, one: bytes, two: bytes, step: int, owned: Owned, known: Callable[[int], str | None]
) -> tuple[list[ContentPointer], list[Difference]]:
    """Of what lies at ``base`` of the region."""
    count = len(one) // 4
    ones, twos = (memoryview(data)[: count * 4].cast("I") for data in (one, two))
    differing = [i for i in _differing(one, two) if i < count]
    pointers: list[ContentPointer] = []
    taken: set[int] = set()
    for i in differing:
        word = ones[i] << 32 | ones[i - 1] if i else 0
        if word in owned and ones[i - 1] == twos[i - 1] and (twos[i] - ones[i]) << 32 == step:
            pointers.append(_pointer(role, base + 4 * i - 4, word, owned))
            taken |= {i - 1, i}
    rest = [i for i in differing if i not in taken]
    for low in sorted({low for i in rest for low in (i - 1, i) if 0 <= low < count - 1}):
        if taken.isdisjoint((low, low + 1)):
            word, other = (halves[low + 1] << 32 | halves[low] for halves in (ones, twos))
            _refuse(role, base + 4 * low, word, other - step, owned, known)
    ranges: list[tuple[int, int]] = []
    for start, stop in [*((4 * i, 4 * i + 4) for i in rest), (4 * count, len(one))]:
        for at in range(start, stop):
            if one[at] == two[at]:
                continue
            if ranges and sum(ranges[-1]) == at:
                ranges[-1] = (ranges[-1][0], ranges[-1][1] + 1)
            else:
                ranges.append((at, 1))
    return pointers, [(role, base + at, size) for at, size in ranges]


def search_content(role: str, kept: Kept, owned: Owned) -> list[ContentPointer]:
    """Range mode: aligned words that lead into a buffer. Numbers that look like one are among them."""
    low, high = owned.low, owned.high
    found = (
        _pointer(role, base + 8 * i, word, owned)
        for base, data in kept
        for i, word in enumerate(memoryview(data)[: len(data) // 8 * 8].cast("Q"))
        if low <= word < high
    )
    return [pointer for pointer in found if pointer.buffer >= 0]


def _differing(one: bytes, two: bytes) -> Iterator[int]:
    """Numbers of the 4-byte halves that differ; the last may be cut short."""
    for page in range(0, len(one), _PAGE):
        a, b = one[page : page + _PAGE], two[page : page + _PAGE]
        if a != b:
            yield from ((page + i) // 4 for i in range(0, len(a), 4) if a[i : i + 4] != b[i : i + 4])


def _pointer(role: str, at: int, word: int, owned: Owned) -> ContentPointer:
    spot = owned.find(word, Asker())
    return ContentPointer(role, at, -1 if spot.why else spot.buffer, 0 if spot.why else spot.offset)


def _refuse(role: str, at: int, word: int, other: int, owned: Owned, known: Callable[[int], str | None]) -> None:
    """``other`` is the word of the second capture, moved back to the first one's slot."""
    if word in owned:
        if other in owned:
            raise AddressMovedError(
                f"comparing the content of {role} in two captures",
                found=f"at byte {at} {owned.describe(word)} in the first, {owned.describe(other)} in the second",
                required="the same place in both captures",
                hint="memory is handed out in another order each time",
            )
        return
    whose = known(word) if LOWEST <= word < HIGHEST else None
    if whose is not None:
        holder = owned.describe(region_base(owned.slot, role) + at)
        raise ForeignMemoryError(
            f"taking the census of the content of {role}",
            found=f"at byte {at} ({holder}) {word:#x}, a pointer to {whose}",
            required="pointers to memory of the capture only",
            hint="what a constant points to has to be allocated in the capture, too",
        )
