"""R28: counters of scripted launches add up exactly."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from heliograph.serve.frames import Gain, Launched, Load, Settings
from heliograph.serve.front.journal import Journal, Work
from heliograph.serve.front.rounds import Rounds
from heliograph.serve.front.text_stream import StopString, TextStream


class Letters:
    def add(self, token: int) -> str:
        return chr(ord("a") + token)

    def end(self) -> str:
        return ""


def launched(entry: str, gains: list[Gain], nanoseconds: int = 5, real: int | None = None) -> Launched:
    return Launched(
        entry=entry, bucket=16, real=len(gains) if real is None else real, nanoseconds=nanoseconds,
        gains=tuple(gains), load=Load(0, 0, 0), prepared=0,
    )  # fmt: skip


class Play:
    """A journal and its counters, fed launches."""

    def __init__(self) -> None:
        self.journal, self.rounds = Journal(), Rounds()

    def row(self, limit: int = 10_000, stops: tuple[str, ...] = ()) -> int:
        work = Work((1,), (0,), limit, 0, (), tuple(map(StopString.of, stops)), Settings())
        (row,) = self.journal.open(work, lambda: TextStream(Letters(), work.stop_strings), lambda kept: None)
        return row.number

    def launch(self, entry: str, *gains: Gain, **more: int) -> None:
        frame = launched(entry, list(gains), **more)
        self.rounds.count(frame, sum(self.journal.take(gain)[0] for gain in gains))


def test_a_request_of_1024_tokens_counts_1023() -> None:
    play = Play()
    row = play.row(limit=1024)
    play.launch("prefill", Gain(row, (0,)))
    for _ in range(1023):
        play.launch("decode", Gain(row, (0,)))
    assert (play.rounds.rounds, play.rounds.emitted, play.rounds.first_tokens) == (1023, 1023, 1)
    assert play.rounds.tokens_per_round == 1


def test_a_stop_token_and_tokens_after_a_stop_string_do_not_count() -> None:
    play = Play()
    one, other = play.row(), play.row(stops=("bc",))
    play.launch("decode", Gain(one, (1, 2)), Gain(other, (0, 1, 2, 3, 4)))
    play.launch("decode", Gain(one, (), "stop"), Gain(other, (5,)))
    assert (play.rounds.rounds, play.rounds.emitted) == (2, 5)


def test_a_launch_whose_rows_were_all_cancelled_is_a_round_without_tokens() -> None:
    play = Play()
    play.launch("decode", Gain(77, (1,)))
    assert (play.rounds.rounds, play.rounds.emitted) == (1, 0)


def test_prefill_has_its_own_launches_tokens_and_time() -> None:
    play = Play()
    row = play.row()
    play.launch("prefill", nanoseconds=7, real=256)
    play.launch("prefill", Gain(row, (1,)), nanoseconds=3, real=40)
    play.launch("decode", Gain(row, (1,)), nanoseconds=11)
    rounds = play.rounds
    assert (rounds.prefills, rounds.prefill_tokens, rounds.prefill_nanoseconds, rounds.first_tokens) == (2, 296, 10, 1)
    assert (rounds.rounds, rounds.nanoseconds) == (1, 11)


def test_before_the_first_round_the_averages_are_zero() -> None:
    assert (Rounds().tokens_per_round, Rounds().milliseconds_per_round) == (0, 0)


tokens = st.lists(st.integers(0, 4), max_size=3).map(tuple)
gains = st.lists(st.builds(Gain, st.integers(0, 5), tokens, st.sampled_from(["", "", "", "stop"])))
launches = st.lists(st.tuples(st.sampled_from(["decode", "prefill"]), gains, st.integers(0, 1000)), max_size=30)


@given(launches)
def test_they_add_up(what: list[tuple]) -> None:
    play = Play()
    rows = []
    work = Work((1,), (0,), 7, 0, (), (StopString.of("ab"),), Settings())
    for _ in range(6):
        rows += play.journal.open(work, lambda: TextStream(Letters(), work.stop_strings), lambda kept: None)
    for entry, gains, nanoseconds in what:
        play.launch(entry, *gains, nanoseconds=nanoseconds)
    rounds = play.rounds
    assert rounds.emitted + rounds.first_tokens == sum(len(row.tokens) for row in rows)
    assert rounds.rounds + rounds.prefills == len(what)
    assert rounds.nanoseconds + rounds.prefill_nanoseconds == sum(nanoseconds for *_, nanoseconds in what)
    assert round(rounds.rounds * rounds.tokens_per_round) == rounds.emitted
