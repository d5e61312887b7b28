"""Bytes that state, scratch and padding are filled with before a test. The same bytes on every machine."""

from __future__ import annotations

import enum
from functools import lru_cache

from blake3 import blake3

_TILE = 1 << 20
_SEED = b"heliograph state pattern"
_PERIOD = 250_008  # no divisor of a unit of growing state: blocks differ

# Of each little-endian float type: bytes of an item, and for its upper bytes (byte, bits kept, bits set) so that any
# random bits become a finite number of magnitude 2^-4 to 2^-3 and either sign.
_FLOATS = {
    "f16": (2, ((1, 0x83, 0x2C),)),
    "bf16": (2, ((1, 0x80, 0x3D), (0, 0x7F, 0x80))),
    "f32": (4, ((3, 0x80, 0x3D), (2, 0x7F, 0x80))),
    "f64": (8, ((7, 0x80, 0x3F), (6, 0x0F, 0xB0))),
}


class Pattern(enum.Enum):
    """What is in scratch before a verification replay."""

    ZEROS = "zeros"
    ONES = "ones"  # 0xFF: NaN as a float, -1 as an integer
    INTEGERS = "integers"  # 32-bit words 1 to 7: plausible counters and indices, denormal floats
    LEFTOVERS = "left-overs"  # whatever the other buckets, run in another order, left there


@lru_cache(maxsize=1)
def state_period(dtype: str) -> bytes:
    """What growing state holds before a self-test, over and over: small finite floats, zeros for integers.

    The last one is kept, since graphs are tested one after the other; ``state_period.cache_clear`` drops it.
    """
    if dtype not in _FLOATS:
        return bytes(_PERIOD)
    item, upper = _FLOATS[dtype]
    period = bytearray(blake3(_SEED).digest(length=_PERIOD))
    for byte, keep, put in upper:
        period[byte::item] = period[byte::item].translate(bytes((value & keep) | put for value in range(256)))
    return bytes(period)


def tile(pattern: Pattern, size: int = _TILE) -> bytes:
    """The start of a scratch pattern; it repeats. Left-overs have none."""
    if pattern is Pattern.INTEGERS:
        words = b"".join((index % 7 + 1).to_bytes(4, "little") for index in range(7))
        return (words * (size // len(words) + 1))[:size]
    return (b"\xff" if pattern is Pattern.ONES else b"\0") * size
