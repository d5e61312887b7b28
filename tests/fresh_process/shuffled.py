"""What both sides of the replay comparison share: the order, the inputs, the digest of a result. No torch here."""

from __future__ import annotations

import random
from array import array
from collections.abc import Mapping, Sequence

from blake3 import blake3

UNIT_BYTES = 512
UNITS = 32  # of growing state while capturing; a load may have more
Work = tuple[str, Mapping[str, int], int]


def plan(shapes: Sequence[tuple[str, Mapping[str, int]]], seed: int, times: int) -> list[tuple[str, Work]]:
    """Every bucket ``times`` times, in an order that the seed decides; each piece of work with its name."""
    works = [(entry, shape, number) for entry, shape in shapes for number in range(times)]
    random.Random(seed).shuffle(works)
    return [
        (f"{entry}/{'x'.join(map(str, shape.values()))}/{number}", (entry, shape, number))
        for entry, shape, number in works
    ]


def replay_inputs(entry: str, shape: Mapping[str, int], number: int) -> dict[str, bytes]:
    """Inputs that bucket and number decide: other data and lengths each time, all rows real, blocks scattered."""
    draw = random.Random(f"{entry} {sorted(shape.items())} {number}")
    (count,) = shape.values()
    if entry == "decode":
        blocks = draw.sample(range(1, UNITS), 6 * count)
        positions = [draw.randrange(24) for _ in range(count)]
    else:
        blocks = draw.sample(range(1, UNITS), 6)
        start = draw.randrange(24 - count + 1)
        positions = [start + token for token in range(count)]
    columns = {"ids": [draw.randrange(50) for _ in range(count)], "positions": positions, "tables": blocks}
    return {name: array("i", column).tobytes() for name, column in columns.items()}


def result_digest(outputs: Sequence[bytes], kv: bytes | memoryview, seen: bytes | memoryview) -> str:
    """Over all outputs and every block in use; block 0 is padding."""
    digest = blake3(b"".join(outputs))
    digest.update(memoryview(kv)[UNIT_BYTES : UNITS * UNIT_BYTES])
    digest.update(seen)
    return digest.hexdigest()
