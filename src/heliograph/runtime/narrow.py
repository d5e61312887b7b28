"""Which bytes of a region matter: by halves down to pages, then down to 256 bytes.

A range matters if filling it with the pattern changes a result. A range that matters while neither of its halves does
alone (two of its words act together) is kept whole.
"""

from __future__ import annotations

from collections.abc import Callable

PAGE = 4096
FLOOR = 256

Range = tuple[int, int]  # first byte, end


def narrow(size: int, matters: Callable[[int, int], bool], *, tests: int) -> list[Range]:
    """Ranges of ``size`` bytes that matter, ascending, not touching.

    ``tests`` bounds how often ``matters`` is asked; when it is used up, what is left is reported as it stands, so the
    result may be coarser than it could be, never too small.
    """
    asked = 0

    def ask(begin: int, end: int) -> bool:
        nonlocal asked
        asked += 1
        return matters(begin, end)

    found: list[Range] = []
    open_ranges = [(0, size)] if size and ask(0, size) else []
    while open_ranges:
        begin, end = open_ranges.pop()
        middle = _middle(begin, end)
        if middle is None or asked + 2 > tests:
            found.append((begin, end))
            continue
        halves = [half for half in ((begin, middle), (middle, end)) if ask(*half)]
        if halves:
            open_ranges += halves
        else:
            found.append((begin, end))
    return merge(found)


def _middle(begin: int, end: int) -> int | None:
    """Where to cut: at a page while the range is longer than one, then at 256 bytes; None if it cannot be cut."""
    unit = PAGE if end - begin > PAGE else FLOOR
    middle = (begin + end) // 2 // unit * unit
    if middle <= begin:
        middle = begin // unit * unit + unit
    return middle if middle < end else None


def merge(ranges: list[Range]) -> list[Range]:
    """Ascending, those that touch or overlap joined."""
    merged: list[Range] = []
    for begin, end in sorted(ranges):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged
