"""Who is admitted, and what the next round launches. Decides only: no device, no clock, no socket.

Admission is first come, first served. A row is admitted when a slot is free and every block that it may ever need,
for its prompt and its limit up to the context, is free too; they are reserved there and then, so no row can run out
of memory midway. (Rows that stop early have reserved too much; giving less and taking a row back later, preemption,
is a later step.)

A round is one decode launch with every decoding row in it and at most one chunk of one prompt. **No running stream
waits longer than one round for its next token**: between two of its tokens lies at most one chunk, however long the
prompts of others are. If more rows decode than the largest bucket that is ready holds, they take turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice

import msgspec

from heliograph.serve.frames import Load
from heliograph.serve.worker.blocks import Blocks
from heliograph.serve.worker.row import Row, State


class Decode(msgspec.Struct, frozen=True):
    """One token of each row, in the bucket of ``bucket`` rows."""

    bucket: int
    rows: tuple[Row, ...]


class Chunk(msgspec.Struct, frozen=True):
    """Tokens ``start`` to ``end`` of a row's prompt, in the bucket of ``bucket`` tokens."""

    bucket: int
    row: Row
    start: int
    end: int


class Round(msgspec.Struct, frozen=True):
    decode: Decode | None
    chunk: Chunk | None


class Scheduler:
    """The rows that have not ended, and the slots and blocks that they hold."""

    def __init__(self, slots: int, units: int) -> None:
        """``units``: KV blocks, the padding block included."""
        self.blocks = Blocks(units)
        self._slots = list(range(slots - 1, -1, -1))
        self._waiting: deque[Row] = deque()
        self._prefilling: deque[Row] = deque()
        self._decoding: deque[Row] = deque()  # whose turn comes first
        self._places: Mapping[State, deque[Row]] = {
            State.WAITING: self._waiting, State.PREFILLING: self._prefilling, State.DECODING: self._decoding,
        }  # fmt: skip

    @property
    def load(self) -> Load:
        return Load(len(self._prefilling) + len(self._decoding), len(self._waiting), self.blocks.free)

    def add(self, row: Row) -> None:
        self._waiting.append(row)

    def admit(self) -> list[Row]:
        """The waiting rows that can begin now, in their order. Rows behind one that cannot begin wait with it."""
        admitted = []
        while self._waiting and self._slots:
            row = self._waiting[0]
            prompt = row.prompt
            own = prompt.total - prompt.common
            if own + (prompt.common if prompt.shared is None else 0) > self.blocks.free:
                break
            if prompt.shared is None:
                prompt.shared = self.blocks.take(prompt.common)
            self.blocks.share(prompt.shared)
            row.admit(self._slots.pop(), [*prompt.shared, *self.blocks.take(own)])
            self._prefilling.append(self._waiting.popleft())
            admitted.append(row)
        return admitted

    def next_round(self, ready: Mapping[str, Sequence[int]]) -> Round:
        """``ready``: the sizes of the buckets that may be used, by entry, smallest first. Of an entry that has none yet
        nothing is launched."""
        return Round(self._next_decode(ready["decode"]), self._next_chunk(ready["prefill"]))

    def _next_decode(self, ready: Sequence[int]) -> Decode | None:
        if not (self._decoding and ready):
            return None
        bucket = smallest(ready, len(self._decoding))
        turn = tuple(islice(self._decoding, bucket))
        if len(turn) < len(self._decoding):
            self._decoding.rotate(-bucket)
        return Decode(bucket, turn)

    def _next_chunk(self, ready: Sequence[int]) -> Chunk | None:
        """Of the oldest prompt that is not stored. What another row has put into shared blocks is skipped, so of the
        rows of one Submit the first stores the shared blocks, or if it leaves, the next goes on where it stopped."""
        if not (self._prefilling and ready):
            return None
        row = self._prefilling[0]
        start = max(row.stored, row.prompt.stored)
        rest = len(row.prompt.tokens) - start
        bucket = smallest(ready, rest)
        return Chunk(bucket, row, start, start + min(rest, bucket))

    def start(self, row: Row) -> None:
        """The row's prompt is stored: from the next round on it decodes."""
        row.start()
        self._prefilling.remove(row)
        self._decoding.append(row)

    def end(self, row: Row) -> None:
        """Takes a row out, wherever it is, and gives back what it holds."""
        held = row.state is not State.WAITING
        self._places[row.state].remove(row)
        row.end()
        if held:
            self._slots.append(row.slot)
            self.blocks.give_back(row.blocks)
        prompt = row.prompt
        prompt.alive -= 1
        if not prompt.alive and prompt.shared is not None:
            self.blocks.give_back(prompt.shared)


def smallest(ready: Sequence[int], wanted: int) -> int:
    """The smallest bucket that holds ``wanted``, or the largest."""
    return next((size for size in ready if size >= wanted), ready[-1])
