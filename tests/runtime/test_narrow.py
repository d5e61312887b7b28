"""Narrowing finds exactly the 256-byte pieces that matter, with few questions, and never too little."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from heliograph.runtime.narrow import FLOOR, PAGE, merge, narrow

SIZE = 64 * PAGE + 512


def pieces(ranges: list[tuple[int, int]]) -> set[int]:
    return {at // FLOOR for begin, end in ranges for at in range(begin, end, FLOOR)}


@given(st.sets(st.integers(0, SIZE - 1), max_size=6))
def test_bytes_that_matter_are_found_to_the_piece(bytes_that_matter: set[int]) -> None:
    def matters(begin: int, end: int) -> bool:
        return any(begin <= at < end for at in bytes_that_matter)

    found = narrow(SIZE, matters, tests=10_000)
    assert pieces(found) == {at // FLOOR for at in bytes_that_matter}
    assert found == merge(found)


def test_one_piece_costs_two_questions_a_halving() -> None:
    asked = 0

    def matters(begin: int, end: int) -> bool:
        nonlocal asked
        asked += 1
        return begin <= 5 * PAGE + 300 < end

    assert narrow(SIZE, matters, tests=10_000) == [(5 * PAGE + 256, 5 * PAGE + 512)]
    assert asked <= 1 + 2 * 11


def test_two_words_that_act_together_keep_the_range_that_holds_both() -> None:
    def matters(begin: int, end: int) -> bool:
        return begin <= 100 and end > 40 * PAGE

    ((begin, end),) = narrow(SIZE, matters, tests=10_000)
    assert begin <= 100
    assert end > 40 * PAGE


def test_when_the_questions_run_out_the_rest_is_reported_whole() -> None:
    found = narrow(SIZE, lambda begin, end: True, tests=21)
    assert pieces(found) == pieces([(0, SIZE)])


def test_nothing_matters_in_nothing() -> None:
    assert narrow(0, lambda begin, end: True, tests=10) == []
    assert narrow(SIZE, lambda begin, end: False, tests=10) == []
