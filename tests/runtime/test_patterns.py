"""Patterns are the same bytes everywhere, and valid numbers of their type."""

from __future__ import annotations

import struct

import pytest
from blake3 import blake3

from heliograph.runtime.numbers import has_nan
from heliograph.runtime.patterns import Pattern, state_period, tile


def values(data: bytes, dtype: str) -> list[float]:
    if dtype == "bf16":
        return [struct.unpack("<f", b"\0\0" + data[at : at + 2])[0] for at in range(0, len(data), 2)]
    code = {"f16": "e", "f32": "f", "f64": "d"}[dtype]
    return list(struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_floats_are_small_finite_of_both_signs_and_differ(dtype: str) -> None:
    found = values(state_period(dtype)[:4096], dtype)
    assert all(2**-4 <= abs(value) < 2**-3 for value in found)
    assert min(found) < 0 < max(found)
    assert len(set(found)) > 200


@pytest.mark.parametrize("dtype", ["i64", "i32", "u8", "bool"])
def test_integers_are_zero(dtype: str) -> None:
    assert not any(state_period(dtype))


def test_f16_words_are_those_of_the_format() -> None:
    """docs/core-format.md states the pattern; this is the statement again, word by word."""
    random = blake3(b"heliograph state pattern").digest(length=64)
    words = [(int.from_bytes(random[at : at + 2], "little") & 0x83FF) | 0x2C00 for at in range(0, 64, 2)]
    assert state_period("f16")[:64] == b"".join(word.to_bytes(2, "little") for word in words)


def test_a_period_is_as_long_as_the_format_says() -> None:
    assert {len(state_period(dtype)) for dtype in ("f16", "bf16", "f32", "f64", "i32")} == {250_008}


def test_tiles() -> None:
    assert tile(Pattern.ZEROS, 16) == bytes(16)
    assert tile(Pattern.ONES, 16) == b"\xff" * 16
    words = memoryview(tile(Pattern.INTEGERS, 64)).cast("i")
    assert list(words) == [1, 2, 3, 4, 5, 6, 7] * 2 + [1, 2]


@pytest.mark.parametrize(("dtype", "code"), [("f16", "<e"), ("f32", "<f"), ("f64", "<d")])
def test_a_nan_is_found_and_infinities_are_none(dtype: str, code: str) -> None:
    clean = b"".join(struct.pack(code, value) for value in (1.0, float("inf"), float("-inf")))
    assert not has_nan(clean, dtype)
    assert has_nan(clean + struct.pack(code, float("nan")), dtype)


def test_a_nan_of_bf16_is_found() -> None:
    assert not has_nan(bytes.fromhex("803f807f80ff"), "bf16")
    assert has_nan(bytes.fromhex("803fc07f"), "bf16")


def test_integers_hold_no_nan() -> None:
    assert not has_nan(b"\xff" * 8, "i32")
