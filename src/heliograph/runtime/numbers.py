"""Looks for NaN in raw bytes, without numpy."""

from __future__ import annotations

import struct

_CODES = {"f16": "e", "f32": "f", "f64": "d"}


def has_nan(data: bytes, dtype: str) -> bool:
    """Whether any element of a float type is not a number; False for integers."""
    if dtype == "bf16":  # the upper half of an f32
        wide = bytearray(2 * len(data))
        wide[2::4], wide[3::4] = data[0::2], data[1::2]
        data, dtype = bytes(wide), "f32"
    if dtype not in _CODES:
        return False
    code = _CODES[dtype]
    values = struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data)
    total = sum(values)  # fast; NaN also where infinities of both signs meet
    return total != total and any(value != value for value in values)
