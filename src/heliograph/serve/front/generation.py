"""The rows of one request while they are generated, and the wait for their next tokens."""

from __future__ import annotations

import asyncio

from heliograph.serve.front.journal import Row
from heliograph.serve.front.metrics import Timer


class Generation:
    """Filled by ``service``. One task waits on it."""

    def __init__(self, timer: Timer) -> None:
        self.timer = timer
        self.rows: list[Row] = []
        self.prompt_tokens = 0
        self._changed = asyncio.Event()

    def changed(self, kept: int) -> None:
        """A row has more tokens, or its end."""
        if kept:
            self.timer(kept)
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
