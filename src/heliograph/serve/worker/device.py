"""What the engine asks of a device and a clock. ``runtime.steps.Steps`` is the device that is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from heliograph.core.manifest import Text
from heliograph.runtime.sampling import Sampling
from heliograph.runtime.steps import Seat


class Device(Protocol):
    """A language model's buckets and memory. Each call returns when its results are there."""

    @property
    def text(self) -> Text: ...  # vocabulary, context, block_tokens, concurrency

    @property
    def units(self) -> int: ...  # KV blocks, the padding block 0 included

    @property
    def biases(self) -> int: ...  # bias entries of a row

    @property
    def sizes(self) -> Mapping[str, tuple[int, ...]]: ...  # of the buckets by entry, smallest first

    def is_ready(self, entry: str, size: int, /) -> bool: ...
    def prepare(self, entry: str, size: int, /) -> None: ...
    def seat(self, slot: int, blocks: Sequence[int], sampling: Sampling, prompt: int, /) -> Seat: ...
    def remember(self, slot: int, ids: Sequence[int], /) -> None: ...
    def decode(
        self, size: int, seats: Sequence[Seat], ids: Sequence[int], positions: Sequence[int], /
    ) -> Sequence[int]: ...
    def prefill(self, size: int, seat: Seat, ids: Sequence[int], start: int, /) -> int: ...


class Clock(Protocol):
    def __call__(self) -> int: ...  # nanoseconds, never backwards
