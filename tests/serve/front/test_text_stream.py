"""Streamed pieces joined are the whole answer, which is what a naive reading of all text gives."""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.serve.front.text_stream import StopString, TextStream


@dataclass
class Pieces:
    """A decoder whose token n spells piece n."""

    pieces: Sequence[bytes]
    _utf8: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))

    def add(self, token: int) -> str:
        return self._utf8.decode(self.pieces[token])

    def end(self) -> str:
        return self._utf8.decode(b"", final=True)


@dataclass
class Read:
    shown: list[str]  # taken after each token, and at the end
    tokens: int  # that counted
    stopped: bool

    @property
    def text(self) -> str:
        return "".join(self.shown)


def read(pieces: Sequence[bytes], stops: Sequence[str] = (), least: int = 0) -> Read:
    stream = TextStream(Pieces(pieces), [StopString.of(stop) for stop in stops], least)
    shown = []
    for token in range(len(pieces)):
        stopped = stream.add(token)
        shown.append(stream.take())
        if stopped:
            return Read(shown, token + 1, True)
    stopped = stream.end()
    return Read([*shown, stream.take()], len(pieces), stopped)


def naive(pieces: Sequence[bytes], stops: Sequence[str], least: int) -> tuple[str, bool]:
    """Character by character, without any holding back: up to the first one that completes a stop string."""
    decoder = Pieces(pieces)
    parts = [decoder.add(token) for token in range(len(pieces))]
    free = "".join(parts[:least])
    searched = "".join(parts[least:]) + (decoder.end() if len(pieces) > least else "")
    for length in range(1, len(searched) + 1):
        found = [stop for stop in stops if searched[:length].endswith(stop)]
        if found:
            return free + searched[: length - max(map(len, found))], True
    return free + searched + (decoder.end() if len(pieces) <= least else ""), False


def cut(data: bytes, at: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(data) + 1) for place in at}), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


texts = st.text(alphabet="ab:é🙂", max_size=40)
stops = st.lists(st.text(alphabet="ab:é🙂", min_size=1, max_size=5), max_size=4)
places = st.lists(st.integers(0, 200), max_size=40)


@given(texts, places, stops, st.integers(0, 6))
def test_for_any_way_the_tokens_fall_the_pieces_join_to_the_naive_answer(
    text: str, at: list[int], stops: list[str], least: int
) -> None:
    pieces = cut(text.encode(), at)
    result = read(pieces, stops, least)
    assert (result.text, result.stopped) == naive(pieces, stops, least)


@given(texts, places, places, stops)
def test_the_answer_does_not_depend_on_how_the_tokens_fall(
    text: str, one: list[int], other: list[int], stops: list[str]
) -> None:
    data = text.encode()
    assert read(cut(data, one), stops).text == read(cut(data, other), stops).text


@given(texts, places, stops)
def test_no_beginning_of_a_stop_string_that_comes_to_an_end_is_ever_shown(
    text: str, at: list[int], stops: list[str]
) -> None:
    """E2: what has been shown at any time is a beginning of the final answer."""
    result = read(cut(text.encode(), at), stops)
    for count in range(len(result.shown)):
        assert result.text.startswith("".join(result.shown[:count]))


@pytest.mark.parametrize("text", ["é", "€", "🙂", "👩‍👩‍👧‍👦", "e\u0301", "日本語 a🙂b"])
def test_a_character_of_several_bytes_is_never_split(text: str) -> None:
    """E1"""
    result = read([bytes([byte]) for byte in text.encode()])
    assert result.text == text
    assert not any("\ufffd" in part for part in result.shown)


def test_a_character_that_the_limit_cuts_is_shown_once_as_one_replacement() -> None:
    """E1"""
    assert read([b"a", b"\xf0", b"\x9f"]).shown == ["a", "", "", "\ufffd"]


def test_a_stop_string_over_several_tokens_does_not_leak() -> None:
    """E2, as reported: DEF, G, HI, J against DEFGHIJ."""
    result = read([b"abc ", b"DEF", b"G", b"HI", b"J", b"never"], ["DEFGHIJ"])
    assert result.shown == ["abc ", "", "", "", ""]
    assert (result.text, result.tokens, result.stopped) == ("abc ", 5, True)


def test_text_that_only_nearly_matched_is_shown_once() -> None:
    """E25, as reported: Alice! against Alice:"""
    result = read([b"Ali", b"ce", b"! ", b"Hi"], ["Alice:"])
    assert result.shown == ["", "", "Alice! ", "Hi", ""]


def test_held_back_text_is_shown_when_the_tokens_end() -> None:
    assert read([b"Hi Ali", b"ce"], ["Alice:"]).shown == ["Hi ", "", "Alice"]


def test_text_of_the_token_that_completes_a_stop_string_is_shown_up_to_it() -> None:
    result = read([b"one STOP two", b"three"], ["STOP"])
    assert (result.text, result.tokens) == ("one ", 1)


@pytest.mark.parametrize(
    ("stops", "answer"),
    [
        (["bc", "abcd"], "xa"),  # the first one to be complete
        (["bcd", "abcd"], "x"),  # the longest of those complete at one character
        (["d", "abcd"], "x"),
        (["x"], ""),
        (["ee"], "xabcd"),
        ([f"{number}?" for number in range(15)] + ["cd"], "xab"),
    ],
)
def test_of_several_stop_strings_the_first_one_complete_decides(stops: list[str], answer: str) -> None:
    for pieces in ([b"xabcd"], [b"x", b"a", b"b", b"c", b"d"], [b"xab", b"cd"]):
        assert read(pieces, stops).text == answer


def test_a_stop_string_may_begin_inside_of_what_seemed_another_ones_beginning() -> None:
    assert read([b"aa", b"a", b"b", b"c"], ["aab"]).text == "a"


def test_text_of_the_least_tokens_is_not_searched() -> None:
    pieces = [b"stop", b"stop", b"a"]
    assert read(pieces, ["stop"], least=1).text == "stop"
    assert read(pieces, ["stop"], least=2).text == "stopstopa"
    assert read([b"st", b"op"], ["stop"], least=1).text == "stop"
