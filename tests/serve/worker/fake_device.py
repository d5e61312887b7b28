"""A device that computes tokens by a formula, and notices what a real one would turn into nonsense.

A row's next token is a function of every token that its blocks hold, what its slot remembers, its seed and settings.
So a wrong block, a wrong row, a chunk stored twice or left out, or a neighbour's settings change the tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

from heliograph.core.manifest import Text
from heliograph.runtime.sampling import Sampling
from heliograph.runtime.steps import Seat

NEVER = float("-inf")
NOTHING = -1  # in a place that nobody has written


def text(*, vocabulary: int = 11, context: int = 24, block_tokens: int = 4, concurrency: int = 4) -> Text:
    return Text(
        tokenizer="0" * 64, chat_template="0" * 64, bos=-1, eos=(0,), vocabulary=vocabulary, context=context,
        block_tokens=block_tokens, concurrency=concurrency, bos_text="", eos_text="",
    )  # fmt: skip


def next_token(tokens: Sequence[int], sampling: Sampling, vocabulary: int) -> int:
    """The token after ``tokens``."""
    finite = tuple(sorted((token, value) for token, value in sampling.bias.items() if value > NEVER))
    settings = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, sampling.presence)
    drawn = hash((tuple(tokens), sampling.seed, settings, finite))
    choices = ((drawn + step) % vocabulary for step in range(vocabulary))
    return next(token for token in choices if sampling.bias.get(token, 0.0) > NEVER)


class FakeDevice:
    """Buckets, blocks and history of a small model. What it is asked for and must not be is an AssertionError."""

    def __init__(
        self,
        text: Text = text(),  # noqa: B008  a frozen record
        *,
        units: int = 25,
        biases: int = 4,
        sizes: Mapping[str, tuple[int, ...]] | None = None,
        ready: str = "first",
    ) -> None:
        self.text = text
        self.units = units
        self.biases = biases
        self.sizes: Mapping[str, tuple[int, ...]] = sizes or {"decode": (1, 2, 4), "prefill": (2, 4, 8)}
        self.built = [
            (entry, size)
            for entry, each in self.sizes.items()
            for size in dict.fromkeys({"all": each, "first": (each[0], each[-1]), "none": ()}[ready])
        ]
        self.launches: list[tuple[str, int, int]] = []  # entry, bucket, real
        self._kv = [[NOTHING] * text.block_tokens for _ in range(units)]
        self._history = [[NOTHING] * text.context for _ in range(text.concurrency)]

    def is_ready(self, entry: str, size: int, /) -> bool:
        return (entry, size) in self.built

    def prepare(self, entry: str, size: int, /) -> None:
        assert size in self.sizes[entry]
        assert not self.is_ready(entry, size)
        self.built.append((entry, size))

    def seat(self, slot: int, blocks: Sequence[int], sampling: Sampling, prompt: int, /) -> Seat:
        assert 0 <= slot < self.text.concurrency
        assert len(set(blocks)) == len(blocks)
        assert all(0 < block < self.units for block in blocks)
        return Seat(slot, array("i", blocks), sampling, prompt, self.biases)

    def remember(self, slot: int, ids: Sequence[int], /) -> None:
        self._history[slot][: len(ids)] = ids

    def decode(
        self, size: int, seats: Sequence[Seat], ids: Sequence[int], positions: Sequence[int], /
    ) -> Sequence[int]:
        assert self.is_ready("decode", size)
        assert 0 < len(seats) == len(ids) == len(positions) <= size
        assert len({seat.slot for seat in seats}) == len(seats)
        self.launches.append(("decode", size, len(seats)))
        for seat, token, position in zip(seats, ids, positions, strict=True):
            self._store(seat, [token], position)
        return [self._sample(seat, position + 1) for seat, position in zip(seats, positions, strict=True)]

    def prefill(self, size: int, seat: Seat, ids: Sequence[int], start: int, /) -> int:
        assert self.is_ready("prefill", size)
        assert 0 < len(ids) <= size
        self.launches.append(("prefill", size, len(ids)))
        self._store(seat, ids, start)
        return self._sample(seat, start + len(ids))

    def _store(self, seat: Seat, ids: Sequence[int], start: int) -> None:
        for position, token in enumerate(ids, start):
            assert 0 <= token < self.text.vocabulary
            block, place = divmod(position, self.text.block_tokens)
            self._kv[seat.table[block]][place] = token
            self._history[seat.slot][position] = token

    def _sample(self, seat: Seat, end: int) -> int:
        tokens = [self._kv[seat.table[at // self.text.block_tokens]][at % self.text.block_tokens] for at in range(end)]
        assert tokens == self._history[seat.slot][:end]
        assert NOTHING not in tokens
        assert 0 < seat.prompt <= self.text.context
        return next_token(tokens, seat.sampling, self.text.vocabulary)


class FakeClock:
    """A microsecond passes whenever somebody looks."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1000
        return self.now
