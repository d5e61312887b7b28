"""A row moves forward only, ends once, and says what each token brings it."""

from __future__ import annotations

import pytest

from heliograph.errors import UsageError
from heliograph.serve.frames import Gain, Settings, Submit
from heliograph.serve.worker.row import Prompt, Row, State

CONTEXT, BLOCK = 24, 4


def prompt(count: int = 5, *, rows: int = 1, limit: int = 3, least: int = 0, stops: tuple[int, ...] = ()) -> Prompt:
    submit = Submit(
        rows=tuple((number, 0) for number in range(rows)), prompt=(1,) * count, limit=limit, least=least, stops=stops,
        settings=Settings(temperature=0.5, bias=((7, 1.5), (8, -1.0))),
    )  # fmt: skip
    return Prompt.of(submit, CONTEXT, BLOCK)


def decoding(shared: Prompt) -> Row:
    row = Row(9, 1, shared)
    row.admit(0, [1, 2])
    row.start()
    return row


def test_a_row_is_moved_through_its_life() -> None:
    row = Row(9, 1, prompt())
    states = [row.state]
    row.admit(2, [4])
    states.append(row.state)
    row.start()
    states.append(row.state)
    row.end()
    assert [*states, row.state] == [State.WAITING, State.PREFILLING, State.DECODING, State.ENDED]
    assert (row.slot, row.blocks) == (2, [4])


@pytest.mark.parametrize("moves", ["", "a", "as"])
def test_a_row_can_end_in_every_state_and_only_once(moves: str) -> None:
    row = Row(9, 1, prompt())
    for move in moves:
        row.admit(0, [1]) if move == "a" else row.start()
    row.end()
    with pytest.raises(UsageError):
        row.end()
    assert row.state is State.ENDED


@pytest.mark.parametrize(("moves", "wrong"), [("", "s"), ("a", "a"), ("as", "a"), ("as", "s"), ("e", "a"), ("e", "s")])
def test_a_row_never_moves_back_or_skips(moves: str, wrong: str) -> None:
    row = Row(9, 1, prompt())
    acts = {"a": lambda: row.admit(0, [1]), "s": row.start, "e": row.end}
    for move in moves:
        acts[move]()
    state = row.state
    with pytest.raises(UsageError):
        acts[wrong]()
    assert row.state is state


def test_a_row_ends_with_the_last_token_of_its_limit() -> None:
    row = decoding(prompt(limit=2))
    assert [row.gain(5), row.gain(6)] == [Gain(9, (5,)), Gain(9, (6,), "length")]


def test_a_stop_token_ends_a_row_and_is_not_part_of_it() -> None:
    row = decoding(prompt(stops=(6,)))
    assert [row.gain(5), row.gain(6)] == [Gain(9, (5,)), Gain(9, (), "stop")]


def test_a_row_ends_with_the_context() -> None:
    row = decoding(prompt(CONTEXT - 2, limit=100))
    assert [row.gain(5), row.gain(6)] == [Gain(9, (5,)), Gain(9, (6,), "length")]


def test_a_row_whose_prompt_fills_the_context_gains_nothing() -> None:
    assert decoding(prompt(CONTEXT, limit=100, stops=(5,))).gain(5) == Gain(9, (), "length")


@pytest.mark.parametrize(
    ("count", "limit", "total"), [(1, 1, 1), (4, 1, 2), (3, 1, 1), (5, 100, 6), (CONTEXT, 1, 6), (8, 8, 4)]
)
def test_a_row_may_need_blocks_for_its_prompt_and_limit_up_to_the_context(count: int, limit: int, total: int) -> None:
    assert prompt(count, limit=limit).total == total


@pytest.mark.parametrize(("count", "rows", "common"), [
    (1, 2, 0), (4, 2, 0), (5, 2, 1), (8, 2, 1), (9, 2, 2), (24, 4, 5), (9, 1, 0),
])  # fmt: skip
def test_rows_share_the_whole_blocks_before_the_last_token(count: int, rows: int, common: int) -> None:
    assert prompt(count, rows=rows).common == common


def test_shared_blocks_hold_what_was_stored_and_no_more_than_they_can() -> None:
    shared = prompt(10, rows=2)
    seen = []
    for end in (3, 7, 5, 10):
        shared.store(end)
        seen.append(shared.stored)
    assert seen == [3, 7, 7, 8]


def test_stop_tokens_are_held_back_until_enough_tokens_are_out() -> None:
    row = decoding(prompt(limit=10, least=2, stops=(6, 7)))
    held = {7: float("-inf"), 8: -1.0, 6: float("-inf")}
    biases = []
    for _ in range(3):
        biases.append(dict(row.sampling().bias))
        row.gain(5)
    assert biases == [held, held, {7: 1.5, 8: -1.0}]


def test_a_row_is_sampled_by_its_seed_and_settings() -> None:
    sampling = decoding(prompt()).sampling()
    assert (sampling.seed, sampling.temperature, sampling.bias) == (1, 0.5, {7: 1.5, 8: -1.0})
