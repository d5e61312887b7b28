"""The file that the second capture hands over: whole or refused."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.capture import words as module
from heliograph.capture.words import MAGIC, VERSION, RecordedKernel, RecordedNode, RecordedNodes, Words, decode, encode
from heliograph.core.format import MAX_PARAM_BYTES
from heliograph.core.templates import KIND_KERNEL, KIND_MEMSET
from heliograph.errors import CaptureError

KERNEL = RecordedKernel("_Z3fooPv", "ab" * 32, bytes(range(12)), ((0, 8), (8, 4)), (3, 2, 1), (32, 1, 1), 5)
NODES = (
    RecordedNode(KIND_KERNEL, "aten.mm - model.py:1", KERNEL, path="layers.0/mm.0", given=(0, 7)),
    RecordedNode(KIND_MEMSET, address=(1 << 64) - 1, source=1, size=1 << 53, form=(1, 4, 64, 1, 0)),
)
TOO_LONG = bytes(MAX_PARAM_BYTES + 1)
WORDS = Words(
    2,
    (RecordedNodes("decode/8", NODES), RecordedNodes("empty", ())),
    {"scratch": ((0, b"a"), (4096, b"\0b")), "persistent": ()},
)


def test_what_is_written_is_read() -> None:
    assert decode(encode(WORDS)) == WORDS
    assert decode(encode(Words(0, ()))) == Words(0, ())


def test_a_file_cut_at_any_byte_is_refused() -> None:
    data = encode(WORDS)
    for end in range(len(data)):
        with pytest.raises(CaptureError):
            decode(data[:end])
    decode(data)


@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CaptureError):
        decode(data)
    header = MAGIC + VERSION.to_bytes(4, "little") + len(data).to_bytes(8, "little")
    with pytest.raises(CaptureError):
        decode(header + data)


@given(st.data())
def test_changed_bytes_give_words_or_a_refusal(data: st.DataObject) -> None:
    raw = bytearray(encode(WORDS))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with suppress(CaptureError):
        assert isinstance(decode(bytes(raw)), Words)


@pytest.mark.parametrize(
    ("at", "byte", "named"),
    [(0, 0x50, "begins with"), (8, 1, "version 1"), (12, 1, "behind the header"), (19, 1, "stated")],
)
def test_each_part_of_the_header_is_checked(at: int, byte: int, named: str) -> None:
    raw = bytearray(encode(WORDS))
    raw[at] = byte
    with pytest.raises(CaptureError) as error:
        decode(bytes(raw))
    assert named in error.value.found
    decode(encode(WORDS))


def test_bytes_behind_the_end_are_refused() -> None:
    with pytest.raises(CaptureError, match="behind the header"):
        decode(encode(WORDS) + b"\0")


@pytest.mark.parametrize(
    "words",
    [
        Words(8, ()),
        Words(-1, ()),
        Words(0, (), {"persistent": ((-1, b""),)}),
        Words(0, (RecordedNodes("x" * 5000, ()),)),
        Words(0, (RecordedNodes("x", (RecordedNode(-1),)),)),
        Words(0, (RecordedNodes("x", (RecordedNode(0, address=-1),)),)),
        Words(0, (RecordedNodes("x", (RecordedNode(0, given=(0,) * 5000),)),)),
        Words(0, (RecordedNodes("x", (msgspec.structs.replace(NODES[0], size=(1 << 53) + 1),)),)),
        Words(0, (RecordedNodes("x", (RecordedNode(0, "", RecordedKernel("f", "", TOO_LONG, ())),)),)),
    ],
)  # fmt: skip
def test_what_exceeds_a_bound_is_refused(words: Words) -> None:
    with pytest.raises(CaptureError):
        decode(encode(words))


def test_a_file_that_is_too_large_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(encode(WORDS))
    monkeypatch.setattr(module, "MAX_BYTES", size - 21)
    with pytest.raises(CaptureError, match="at most"):
        encode(WORDS)
    monkeypatch.setattr(module, "MAX_BYTES", size - 20)
    encode(WORDS)
