"""Canonical JSON (docs/core-format.md, "JSON"): one encoder, one decoder that accepts nothing else."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from heliograph.core.format import MAX_JSON_BYTES, MAX_JSON_DEPTH
from heliograph.core.refusal import refusal

T = TypeVar("T")

_encoder: Final = msgspec.json.Encoder(order="sorted")
_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_OTHERS: Final = bytes(byte for byte in range(256) if byte not in b'[]{}"')


def encode(record: object) -> bytes:
    """The one byte string that stands for ``record``."""
    return _encoder.encode(record)


def utf8_text(text: str) -> str:
    """Text of the system as UTF-8 can hold it: what is not in its encoding, as of a file's name, is escaped."""
    return text.encode(errors="backslashreplace").decode()


def decode(data: bytes | memoryview, kind: type[T], doing: str, limit: int = MAX_JSON_BYTES) -> T:
    """The record that ``data`` is the canonical encoding of. FormatError for every other byte string."""
    data = bytes(data)
    if len(data) > limit:
        raise refusal(doing, f"{len(data)} bytes", f"at most {limit} bytes of JSON", "M1")
    if not depth_within(data, MAX_JSON_DEPTH):
        raise refusal(doing, "deeper nesting", f"at most {MAX_JSON_DEPTH} levels of nesting", "M2")
    try:
        record = msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise refusal(doing, str(error), "exactly the fields and types of the format", "M4") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise refusal(doing, str(error), "JSON in UTF-8", "M3") from error
    if encode(record) != data:
        raise refusal(
            doing,
            "JSON in another form",
            "the canonical encoding: keys sorted, each once, no white space, shortest escapes, integers only",
            "M3",
        )
    return record


def depth_within(data: bytes, limit: int) -> bool:
    """Whether no bracket outside a string is nested deeper than ``limit``; linear in the size for each level."""
    # Without escapes (a pair of backslashes first, so that the quote behind it ends its string), then without strings.
    unescaped = data.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in data else data
    marks = unescaped.translate(_BRACKETS, _OTHERS)
    # Two quotes side by side are an empty string, or end one and begin the next: what is outside stays so without them.
    brackets = b"".join(marks.replace(b'""', b"").split(b'"')[::2])
    for _ in range(limit):
        if b"[]" not in brackets:
            break
        brackets = brackets.replace(b"[]", b"")
    return b"[]" not in brackets and brackets.count(b"[") <= limit
