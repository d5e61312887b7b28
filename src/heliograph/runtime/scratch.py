"""The scratch region before a replay: one pattern all over, or an image in a range and zeros elsewhere."""

from __future__ import annotations

from heliograph.runtime.loaded import Loaded
from heliograph.runtime.patterns import Pattern, tile


class Scratch:
    """Fills the scratch of a loaded core. Content that the core keeps there is put back after each fill."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self.size = loaded.memory.mapped("scratch")

    def fill(self, pattern: Pattern) -> None:
        """The whole region; left-overs stay as they are."""
        if pattern is not Pattern.LEFTOVERS:
            self._put(pattern, 0, self.size)
            self._loaded.restore_initial("scratch")

    def fill_range(self, image: Pattern | bytes, begin: int, end: int) -> None:
        """A pattern, or what ``image`` (all of scratch at another time) holds there; zeros elsewhere."""
        self._put(Pattern.ZEROS, 0, self.size)
        if isinstance(image, Pattern):
            self._put(image, begin, end)
        else:
            self._loaded.memory.write("scratch", begin, memoryview(image)[begin:end])
        self._loaded.restore_initial("scratch")

    def _put(self, pattern: Pattern, begin: int, end: int) -> None:
        memory = self._loaded.memory
        if pattern is not Pattern.INTEGERS:
            memory.fill("scratch", begin, tile(pattern, 1)[0], end - begin)
            return
        block = tile(pattern)
        for offset in range(begin, end, len(block)):
            memory.write("scratch", offset, block[: end - offset])
