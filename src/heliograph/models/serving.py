"""How a language model is to be served: the sizes that a capture fixes."""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.errors import UsageError

LARGEST_START = 48  # tokens before the chunk in a prefill example
ROWS_PER_LONG_ROW = 4  # of a decode example: one in so many has two blocks, the others one


@dataclass(frozen=True, slots=True)
class Serving:
    """``context``: tokens of a sequence at most. ``masks``: grammar masks in the pool, one a row. (Each self-test holds
    the pool in its inputs, which a start reads.)"""

    context: int
    block_tokens: int = 16
    decode_rows: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16)
    prefill_tokens: tuple[int, ...] = (16, 64, 256)
    masks: int = 16

    def __post_init__(self) -> None:
        if self.context < min(self.prefill_tokens):
            raise UsageError(
                "planning how to serve the model", found=f"a context of {self.context} tokens",
                required=f"{min(self.prefill_tokens)} or more, the smallest prefill chunk", hint="capture more context",
            )  # fmt: skip

    @property
    def concurrency(self) -> int:
        return max(self.decode_rows)

    @property
    def prefill_buckets(self) -> tuple[int, ...]:
        """Chunks that fit the context."""
        return tuple(tokens for tokens in self.prefill_tokens if tokens <= self.context)

    @property
    def blocks(self) -> int:
        """Blocks of one sequence at most: the width of a block table."""
        return -(-self.context // self.block_tokens)

    @property
    def example_units(self) -> int:
        """Blocks that the examples use, the padding block included: what most rows or the largest chunk need. Few: each
        self-test fills and compares them all."""
        chunk = -(-(max(self.prefill_buckets) + LARGEST_START) // self.block_tokens)
        return 1 + max(self.concurrency + -(-self.concurrency // ROWS_PER_LONG_ROW), chunk)
