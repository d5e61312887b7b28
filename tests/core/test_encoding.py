"""Canonical JSON: one byte string for each value, and every other one is refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.core.encoding import decode, depth_within, encode
from heliograph.core.format import MAX_INTEGER, MAX_JSON_DEPTH
from heliograph.core.manifest import Address, Blob, Count, Digest, Field, Item, Name, Record
from heliograph.errors import FormatError


class Pair(Record, frozen=True, kw_only=True):
    """A record with every kind of value, keys out of order."""

    word: str
    number: Count
    items: tuple[Item, ...]


def refused(data: bytes, kind: Any = Pair) -> str:
    with pytest.raises(FormatError) as error:
        decode(data, kind, "reading")
    return error.value.rule


GOOD = '{"items":[{"name":"a","value":"b"}],"number":1,"word":"é\\"\\\\\\n\\u0001"}'.encode()


def test_canonical_json_is_read_and_written_back() -> None:
    """M3, M4"""
    record = decode(GOOD, Pair, "reading")
    assert record == Pair(word='é"\\\n\x01', number=1, items=(Item(name="a", value="b"),))
    assert encode(record) == GOOD


ALTERED = {
    "a space": GOOD.replace(b'"number":1', b'"number": 1'),
    "a new line at the end": GOOD + b"\n",
    "a byte order mark": b"\xef\xbb\xbf" + GOOD,
    "keys out of order": b'{"number":1,"items":[],"word":""}',
    "a key twice": GOOD.replace(b'"number":1', b'"number":1,"number":1'),
    "a key twice with another value": GOOD.replace(b'"number":1', b'"number":2,"number":1'),
    "a letter escaped": GOOD.replace(b"\xc3\xa9", b"\\u00e9"),
    "a slash escaped": b'{"items":[],"number":1,"word":"\\/"}',
    "a long escape": GOOD.replace(b"\\n", b"\\u000a"),
    "upper-case hexadecimal": b'{"items":[],"number":1,"word":"\\u001F"}',
    "a fraction": GOOD.replace(b":1,", b":1.0,"),
    "an exponent": GOOD.replace(b":1,", b":1e0,"),
    "minus zero": GOOD.replace(b":1,", b":-0,"),
    "a leading zero": GOOD.replace(b":1,", b":01,"),
    "UTF-16": GOOD.decode().encode("utf-16"),
    "bytes that are not UTF-8": GOOD.replace(b"\xc3\xa9", b"\xff\xfe"),
    "a lone surrogate": b'{"items":[],"number":1,"word":"\\ud800"}',
    "an encoded surrogate": b'{"items":[],"number":1,"word":"\xed\xa0\x80"}',
    "an overlong form": b'{"items":[],"number":1,"word":"\xc0\xaf"}',
    "cut off": GOOD[:-1],
    "nothing": b"",
    "two values": GOOD + GOOD,
}


@pytest.mark.parametrize("name", ALTERED)
def test_another_form_of_the_same_value_is_refused(name: str) -> None:
    """M3"""
    assert refused(ALTERED[name]) in {"M3", "M4"}


@pytest.mark.parametrize(
    "data",
    [
        b'{"items":[],"number":1}',
        b'{"items":[],"number":1,"word":"","x":0}',
        b'{"items":[],"number":"1","word":""}',
        b'{"items":[],"number":true,"word":""}',
        b'{"items":[],"number":null,"word":""}',
        b'{"items":[],"number":-1,"word":""}',
        b'{"items":{},"number":1,"word":""}',
        b'{"items":[{"name":"a"}],"number":1,"word":""}',
        b"[]",
        b"null",
    ],
)
def test_other_fields_and_types_are_refused(data: bytes) -> None:
    """M4"""
    assert refused(data) == "M4"


@pytest.mark.parametrize("number", [MAX_INTEGER + 1, 1 << 63, 1 << 64, 10**400])
def test_an_integer_beyond_53_bits_is_refused(number: int) -> None:
    """M4"""
    assert refused(b'{"items":[],"number":%d,"word":""}' % number) == "M4"
    assert decode(b'{"items":[],"number":%d,"word":""}' % MAX_INTEGER, Pair, "reading").number == MAX_INTEGER


def test_a_file_over_the_limit_is_refused_before_it_is_parsed() -> None:
    """M1"""
    assert decode(GOOD, Pair, "reading", limit=len(GOOD)).number == 1
    with pytest.raises(FormatError) as error:
        decode(GOOD, Pair, "reading", limit=len(GOOD) - 1)
    assert error.value.rule == "M1"
    with pytest.raises(FormatError) as error:
        decode(b"\xff" * 100, Pair, "reading", limit=99)
    assert error.value.rule == "M1"


@pytest.mark.parametrize("brackets", [(b"[", b"]"), (b'{"":', b"}")])
@pytest.mark.parametrize("depth", [MAX_JSON_DEPTH + 1, 100_000])
def test_deep_nesting_is_refused_before_it_is_parsed(brackets: tuple[bytes, bytes], depth: int) -> None:
    """M2"""
    begin, end = brackets
    assert refused(begin * depth + b"1" + end * depth) == "M2"
    assert refused(begin * depth) == "M2"
    assert refused(begin * MAX_JSON_DEPTH + b"1" + end * MAX_JSON_DEPTH) == "M4"  # the twin fails for its type only


def test_brackets_in_strings_are_not_nesting() -> None:
    """M2"""
    word = "[{" * 1000 + '"' + "[" * 1000 + "\\"
    data = encode(Pair(word=word, number=0, items=()))
    assert decode(data, Pair, "reading").word == word


@given(
    st.recursive(
        st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    )
)
def test_depth_is_that_of_the_parsed_value(value: Any) -> None:
    """M2"""

    def depth(part: Any) -> int:
        if isinstance(part, list | dict):
            return 1 + max(map(depth, part.values() if isinstance(part, dict) else part), default=0)
        return 0

    data = json.dumps(value).encode()
    assert depth_within(data, depth(value))
    assert depth(value) == 0 or not depth_within(data, depth(value) - 1)


@given(st.builds(Pair, word=st.text(), number=st.integers(0, MAX_INTEGER),
                 items=st.lists(st.builds(Item, name=st.text(), value=st.text()), max_size=3).map(tuple)))  # fmt: skip
def test_every_record_survives_the_round_trip(record: Pair) -> None:
    """M3, M92"""
    data = encode(record)
    assert decode(data, Pair, "reading") == record
    plain = msgspec.to_builtins(record)
    assert data == json.dumps(plain, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


@given(st.binary(max_size=60))
def test_no_bytes_crash_the_decoder(data: bytes) -> None:
    """M3, M4"""
    assert refused(data) in {"M2", "M3", "M4"}


@given(st.data())
def test_no_flipped_byte_is_read_as_the_same_record(data: st.DataObject) -> None:
    """M3"""
    at = data.draw(st.integers(0, len(GOOD) - 1))
    flipped = bytearray(GOOD)
    flipped[at] ^= data.draw(st.integers(1, 255))
    try:
        record = decode(bytes(flipped), Pair, "reading")
    except FormatError:
        return
    assert record != decode(GOOD, Pair, "reading")


BAD_NAMES = [
    "", ".", "..", "../x", "/x", "x/", "a//b", "a/./b", "a/../../x", "a\\b", "a b", " a", "a\n", "a\0b", "a\x7f",
    "caf\u00e9", "\u0430dmin", "\uff0e\uff0e/x", "a" * 4097,
]  # fmt: skip
GOOD_NAMES = ["a", "...", ".x", "a/b", "io/step/1/in/x", "layers.0.weight", "a" * 4096, "<lambda>", "_ZN3fooEv"]


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
def test_a_name_that_could_be_mistaken_for_another_path_is_refused(name: str) -> None:
    """M4"""
    assert refused(encode(Field(name=name, buffer=0)), Field) == "M4"


@pytest.mark.parametrize("name", GOOD_NAMES, ids=lambda name: name[:20])
def test_an_ordinary_name_is_read(name: str) -> None:
    """M4"""
    assert decode(encode(Field(name=name, buffer=0)), Field, "reading").name == name
    assert decode(encode(name), Name, "reading") == name


BAD_DIGESTS = [
    "", "0" * 63, "0" * 65, "A" * 64, "g" * 64, "0" * 64 + "\n", "../" + "0" * 61, "/" + "0" * 63, "0" * 63 + "/",
    "0" * 32 + "\0" + "0" * 31, "sha256:" + "0" * 57, "..", "\uff10" * 64, " " + "0" * 63, "0" * 4096,
]  # fmt: skip


@pytest.mark.parametrize("digest", BAD_DIGESTS, ids=lambda digest: ascii(digest)[:20])
def test_a_digest_is_64_lower_case_digits_before_anything_uses_it(digest: str) -> None:
    """M4"""
    assert refused(encode(Blob(digest=digest, size=0)), Blob) == "M4"
    assert decode(encode(Blob(digest="0a" * 32, size=0)), Blob, "reading").digest == "0a" * 32
    assert decode(encode("f" * 64), Digest, "reading") == "f" * 64


@pytest.mark.parametrize(
    "address", ["", "0x", "0x0", "0x01", "0xG", "0XA", "A", "-0x1", "0x" + "1" * 17, "0x1\n", "4096"]
)
def test_an_address_is_hexadecimal_without_leading_zero(address: str) -> None:
    """M4"""
    assert refused(encode(address), Address) == "M4"
    assert decode(encode("0x100100000000"), Address, "reading") == "0x100100000000"
