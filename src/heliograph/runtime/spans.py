"""Fields of a bucket in memory that the host cannot address: all inputs are one copy, all outputs another.

A capture lays the inputs of a bucket side by side, and its outputs; between two buffers lies padding that nobody reads.
Where something else lies between them, fields are copied one by one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from heliograph.core.manifest import Buffer, Core
from heliograph.runtime.memory import Bytes, Memory


class Spans:
    """Field access by spans. Any thread, as ``Memory``."""

    def __init__(self, core: Core, memory: Memory) -> None:
        self._memory = memory
        self._starts = sorted(buffer.offset for buffer in core.buffers if buffer.role == "io")

    def write(self, buffers: Sequence[Buffer], data: Bytes) -> None:
        at = 0
        with memoryview(data) as view:
            for first, size, group in self._groups(buffers):
                image = bytearray(size)
                for buffer in group:
                    image[buffer.offset - first : buffer.offset - first + buffer.size] = view[at : at + buffer.size]
                    at += buffer.size
                self._memory.write("io", first, image)

    def read(self, buffers: Sequence[Buffer]) -> Iterator[memoryview]:
        for first, size, group in self._groups(buffers):
            with memoryview(self._memory.read("io", first, size)) as image:
                for buffer in group:
                    with image[buffer.offset - first : buffer.offset - first + buffer.size] as data:
                        yield data

    def fill(self, buffers: Sequence[Buffer], value: int) -> None:
        for first, size, _ in self._groups(buffers):
            self._memory.fill("io", first, value, size)

    def span(self, buffers: Sequence[Buffer]) -> tuple[int, int] | None:
        """Offset and size of the bytes from the first to the last buffer, if no other buffer lies between them."""
        first = min(buffer.offset for buffer in buffers)
        end = max(buffer.offset + buffer.size for buffer in buffers)
        alone = bisect_left(self._starts, end) - bisect_left(self._starts, first) == len(buffers)
        return (first, end - first) if alone else None

    def _groups(self, buffers: Sequence[Buffer]) -> Iterator[tuple[int, int, Sequence[Buffer]]]:
        """Offset, size and buffers of each copy."""
        found = self.span(buffers) if buffers else None
        if found is not None:
            yield *found, buffers
        else:
            for buffer in buffers:
                yield buffer.offset, buffer.size, (buffer,)
