"""Each row gets its tokens and exactly one end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.serve.frames import Gain, Settings
from heliograph.serve.front.journal import End, Journal, Row, Work, submit_of
from heliograph.serve.front.text_stream import StopString, TextStream


class Letters:
    """Token n is the n-th letter."""

    def add(self, token: int) -> str:
        return chr(ord("a") + token % 26)

    def end(self) -> str:
        return ""


class Broken(Letters):
    """Cannot spell token 2."""

    def add(self, token: int) -> str:
        if token == 2:
            raise ValueError
        return super().add(token)


def work(seeds: int = 1, limit: int = 100, stops: tuple[str, ...] = ()) -> Work:
    return Work((1, 2, 3), tuple(range(seeds)), limit, 0, (9,), tuple(map(StopString.of, stops)), Settings())


def opened(journal: Journal, given_work: Work, decoder: type[Letters] = Letters) -> tuple[tuple[Row, ...], list[int]]:
    heard: list[int] = []
    rows = journal.open(given_work, lambda: TextStream(decoder(), given_work.stop_strings), heard.append)
    return rows, heard


def test_tokens_up_to_a_stop_token_are_kept() -> None:
    journal = Journal()
    (row,), heard = opened(journal, work())
    assert journal.take(Gain(row.number, (0, 1))) == (2, None)
    assert journal.take(Gain(row.number, (2,), "stop")) == (1, row)
    assert (row.tokens, row.end, row.text.take(), heard) == ([0, 1, 2], End.STOP, "abc", [2, 1])


def test_tokens_after_a_stop_string_are_not_kept_and_the_worker_need_not_know() -> None:
    journal = Journal()
    (row,), _ = opened(journal, work(stops=("bc",)))
    assert journal.take(Gain(row.number, (0, 1, 2, 3, 4))) == (3, row)
    assert (row.tokens, row.end, row.text.take()) == ([0, 1, 2], End.STOP, "a")
    assert journal.take(Gain(row.number, (5,))) == (0, None)
    assert len(journal) == 0


def test_tokens_beyond_the_limit_are_not_kept() -> None:
    journal = Journal()
    (row,), _ = opened(journal, work(limit=3))
    assert journal.take(Gain(row.number, (0, 1, 2, 3, 4))) == (3, row)
    assert (row.tokens, row.end) == ([0, 1, 2], End.LENGTH)


def test_a_stop_string_that_the_last_token_completes_is_a_stop_and_no_length() -> None:
    """E9, E15"""
    journal = Journal()
    (row,), _ = opened(journal, work(limit=2, stops=("ab",)))
    journal.take(Gain(row.number, (0, 1), "length"))
    assert (row.end, row.text.take()) == (End.STOP, "")


def test_a_row_whose_text_cannot_be_made_ends_and_the_others_go_on() -> None:
    """E10"""
    journal = Journal()
    (row,), heard = opened(journal, work(), Broken)
    (other,), _ = opened(journal, work())
    assert journal.take(Gain(row.number, (0, 2, 1))) == (2, row)
    assert (row.end, row.tokens, row.text.take(), heard) == (End.BROKEN, [0, 2], "a", [2])
    assert isinstance(row.fault, ValueError)
    assert journal.take(Gain(other.number, (2,))) == (1, None)
    assert len(journal) == 1


@pytest.mark.parametrize(("said", "end"), [("stop", End.STOP), ("length", End.LENGTH)])
def test_the_workers_end_is_the_rows_end(said: str, end: End) -> None:
    journal = Journal()
    (row,), _ = opened(journal, work())
    journal.take(Gain(row.number, (), said))
    assert (row.end, row.tokens) == (end, [])


def test_a_row_that_was_finished_keeps_its_first_end() -> None:
    journal = Journal()
    (row,), heard = opened(journal, work())
    assert journal.finish(row.number, End.CANCELLED)
    assert not journal.finish(row.number, End.FAILED)
    assert journal.take(Gain(row.number, (1,), "stop")) == (0, None)
    assert (row.end, row.tokens, heard) == (End.CANCELLED, [], [0])


def test_numbers_are_never_used_again() -> None:
    journal = Journal()
    first, _ = opened(journal, work(seeds=3))
    journal.finish_all(End.FAILED, "gone")
    second, _ = opened(journal, work(seeds=2))
    assert [row.number for row in (*first, *second)] == [0, 1, 2, 3, 4]
    assert {row.end for row in first} == {End.FAILED}
    assert {row.message for row in first} == {"gone"}


def test_a_submission_holds_all_that_decides_the_tokens() -> None:
    journal = Journal()
    rows, _ = opened(journal, work(seeds=2, limit=7))
    submit = submit_of(rows)
    assert submit.rows == ((0, 0), (1, 1))
    assert (submit.prompt, submit.limit, submit.stops) == ((1, 2, 3), 7, (9,))


numbers, tokens = st.integers(0, 4), st.lists(st.integers(0, 4), max_size=4)
gains = st.tuples(st.just("gain"), numbers, tokens, st.sampled_from(["", "", "stop", "length"]))
ends = st.sampled_from([End.CANCELLED, End.REFUSED, End.FAILED, End.BROKEN])
steps = st.lists(gains | st.tuples(st.just("finish"), numbers, ends, st.just("")), max_size=40)


@given(steps)
def test_whatever_comes_each_row_ends_at_most_once_and_keeps_what_it_had_then(what: list[tuple]) -> None:
    journal = Journal()
    rows, _ = opened(journal, work(seeds=4, limit=5, stops=("ab", "cc")))
    had: dict[int, tuple[End, list[int]]] = {}
    kept = 0
    for kind, number, value, end in what:
        if kind == "gain":
            more, ended = journal.take(Gain(number, tuple(value), end))
            kept += more
            assert (ended is not None) <= (number not in had)
        else:
            journal.finish(number, value)
        for row in rows:
            if row.end is not None:
                assert had.setdefault(row.number, (row.end, list(row.tokens))) == (row.end, row.tokens)
    assert kept == sum(len(row.tokens) for row in rows)
    assert all(len(row.tokens) <= 5 for row in rows)
    assert len(journal) == sum(row.end is None for row in rows)
