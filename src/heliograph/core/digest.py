"""BLAKE3 with as many threads as pay off."""

from __future__ import annotations

from typing import Final

from blake3 import blake3

# Below this one thread is as fast. The library's threads also do not survive a fork, so small things do without.
_PARALLEL_BYTES: Final = 4 << 20


def hasher(size: int) -> blake3:
    """A hasher for about ``size`` bytes."""
    return blake3(max_threads=blake3.AUTO if size >= _PARALLEL_BYTES else 1)


def digest(data: bytes | bytearray | memoryview) -> str:
    """64 lower-case hex digits."""
    return blake3(data, max_threads=blake3.AUTO if len(data) >= _PARALLEL_BYTES else 1).hexdigest()
