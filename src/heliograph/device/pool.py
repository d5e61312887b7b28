"""A pool: memory that graphs may point into, and the object that keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Pool(Protocol):
    """Memory and its owner. As long as the pool is held its ranges stay valid and where they are."""

    @property
    def name(self) -> str: ...

    @property
    def owner(self) -> object:
        """What keeps the memory; holding it must be enough."""

    @property
    def ranges(self) -> Sequence[tuple[int, int]]:
        """(address, bytes) of each piece. Pieces may be added, and never move or go."""
