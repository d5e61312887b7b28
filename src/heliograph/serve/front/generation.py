"""The rows of one request while they are generated, and the wait for their next tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from heliograph.serve.front.journal import Row


class Generation:
    """Filled by ``service``. One task waits on it."""

    def __init__(self, timed: Callable[[int], None]) -> None:
        """``timed`` is told each number of tokens as a row gets them."""
        self.rows: list[Row] = []
        self.prompt_tokens = 0
        self._timed = timed
        self._changed = asyncio.Event()

    def changed(self, kept: int) -> None:
        """A row has more tokens, or its end."""
        if kept:
            self._timed(kept)
        self._changed.set()

    async def wait(self, seconds: float | None) -> bool:
        """Until something changed since the last call; False after so much silence."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True

    @property
    def under_way(self) -> list[Row]:
        return [row for row in self.rows if row.end is None]
