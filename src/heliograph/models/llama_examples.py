"""Valid inputs for every bucket of a Llama: what self-tests and verification replays run on.

Each example holds what serving meets: tables over scattered blocks, padding, ids taken from the last sampled token,
greedy and random rows with and without penalties, bias and mask. The same seed gives the same bytes.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Mapping, Sequence
from itertools import chain, islice

from heliograph.capture.spec import Example
from heliograph.models.llama import LlamaConfig
from heliograph.models.serving import LARGEST_START, ROWS_PER_LONG_ROW, Serving
from heliograph.ops.sample import BIASES

PADDING = -1
MASKS_IN_USE = 2
STARTING_ROWS = (1, 2)
STARTING_TOKENS = (1, 3)
CODES = {"i32": "i", "f32": "f", "i64": "q"}
Column = tuple[str, Sequence[float]]  # type, values


def example(config: LlamaConfig, serving: Serving, entry: str, bucket: Mapping[str, int], seed: int) -> Example:
    """Inputs of one bucket. Seeds 0 and 1, which every start runs, have few real rows or tokens; seed 2 has no padding;
    after those their number varies."""
    draw = random.Random(f"{entry} {sorted(bucket.items())} {seed}")  # noqa: S311  reproducible, not secret
    if entry == "decode":
        columns, real_rows = _decode(config, serving, draw, bucket["rows"], seed)
    else:
        columns, real_rows = _prefill(config, serving, draw, bucket["tokens"], seed)
    columns["masks"] = ("i32", _masks(config, serving, draw))
    return Example({name: _bytes(*column) for name, column in columns.items()}, real_rows, _units(serving, seed))


def _decode(
    config: LlamaConfig, serving: Serving, draw: random.Random, rows: int, seed: int
) -> tuple[dict[str, Column], dict[str, int]]:
    real = _real(draw, rows, seed, STARTING_ROWS)
    padding = rows - real
    blocks = iter(draw.sample(range(1, _units(serving, seed)), real + -(-real // ROWS_PER_LONG_ROW)))
    lengths = [2 if row % ROWS_PER_LONG_ROW == 0 else 1 for row in range(real)]  # in blocks
    positions = [draw.randrange(min(length * serving.block_tokens, serving.context)) for length in lengths]
    ids = [draw.choice((PADDING, draw.randrange(config.vocabulary))) for _ in range(real)]
    used = [_table(serving, list(islice(blocks, length))) for length in lengths]
    tables = used + [_table(serving, [])] * padding
    columns: dict[str, Column] = {
        "ids": ("i32", ids + [0] * padding),
        "positions": ("i32", positions + [PADDING] * padding),
        "tables": ("i32", list(chain.from_iterable(tables))),
        "real": ("i32", [real]),
        "slots": ("i32", draw.sample(range(serving.concurrency), real) + [PADDING] * padding),
        **_sampling(config, draw, [position + 1 for position in positions], padding),
    }
    return columns, {"rows": real}


def _prefill(
    config: LlamaConfig, serving: Serving, draw: random.Random, tokens: int, seed: int
) -> tuple[dict[str, Column], dict[str, int]]:
    real = _real(draw, tokens, seed, STARTING_TOKENS)
    start = draw.randrange(min(LARGEST_START, serving.context - real) + 1)
    used = -(-(start + real) // serving.block_tokens)
    padding = tokens - real
    columns: dict[str, Column] = {
        "ids": ("i32", [draw.randrange(config.vocabulary) for _ in range(real)] + [0] * padding),
        "positions": ("i32", [*range(start, start + real), *[PADDING] * padding]),
        "tables": ("i32", _table(serving, draw.sample(range(1, _units(serving, seed)), used))),
        "real": ("i32", [real]),
        "last_row": ("i32", [real - 1]),
        "slots": ("i32", [draw.randrange(serving.concurrency)]),
        **_sampling(config, draw, [start + real], 0),
    }
    return columns, {"tokens": real}


def _real(draw: random.Random, extent: int, seed: int, starting: tuple[int, int]) -> int:
    if seed < len(starting):
        return min(extent, starting[seed])
    return extent - (draw.randrange(extent // 2 + 1) if seed > len(starting) else 0)


def _units(serving: Serving, seed: int) -> int:
    """Blocks that an example chooses from, the padding block included. A start fills and compares them: it has few."""
    if seed >= len(STARTING_ROWS):
        return serving.example_units
    chunk = -(-(LARGEST_START + max(STARTING_TOKENS)) // serving.block_tokens)
    return min(2 + max(2 * max(STARTING_ROWS), chunk), serving.example_units)


def _sampling(config: LlamaConfig, draw: random.Random, lengths: Sequence[int], padding: int) -> dict[str, Column]:
    """Settings of the real rows, some at rest; padding rows hold zeros. Lengths are the positions to be sampled."""

    def column(kind: str, *values: float) -> Column:
        return kind, [draw.choice(values) for _ in lengths] + [0] * padding

    biases = range(BIASES * len(lengths))
    ids = [draw.choice((PADDING, draw.randrange(config.vocabulary))) for _ in biases]
    return {
        "lengths": ("i32", [*lengths, *[0] * padding]),
        "prompts": ("i32", [draw.randrange(length + 1) for length in lengths] + [0] * padding),
        "temperature": column("f32", 0.0, 0.7, 1.0),
        "top_k": column("i32", 0, 1, 40),
        "top_p": column("f32", 1.0, 0.9),
        "min_p": column("f32", 0.0, 0.05),
        "presence": column("f32", 0.0, 0.5),
        "frequency": column("f32", 0.0, 0.25),
        "repetition": column("f32", 1.0, 1.25),
        "bias_ids": ("i32", ids + [PADDING] * BIASES * padding),
        "bias_values": ("f32", [draw.choice((-1.5, 0.5, 2.0)) for _ in biases] + [0] * BIASES * padding),
        "mask_index": ("i32", [draw.randrange(-1, MASKS_IN_USE) for _ in lengths] + [PADDING] * padding),
        "seed": ("i64", [draw.randrange(-(1 << 63), 1 << 63) for _ in lengths] + [0] * padding),
        "sample_position": ("i32", [*lengths, *[0] * padding]),
        "logprob_count": column("i32", 0, 5, 20),
    }  # fmt: skip


def _masks(config: LlamaConfig, serving: Serving, draw: random.Random) -> list[int]:
    """The first masks allow about half of all tokens; the others are not in use."""
    width = -(-config.vocabulary // 32)
    used = [draw.randrange(-(1 << 31), 1 << 31) for _ in range(min(MASKS_IN_USE, serving.masks) * width)]
    return used + [0] * (serving.masks * width - len(used))


def _table(serving: Serving, blocks: Sequence[int]) -> list[int]:
    """A block table, filled up with the padding block."""
    return [*blocks, *[0] * serving.blocks][: serving.blocks]


def _bytes(kind: str, values: Sequence[float]) -> bytes:
    return array(CODES[kind], values).tobytes()
