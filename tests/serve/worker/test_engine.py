"""Rows through the engine on a fake device: what they gain, how they end, what a cancel frees, what gets built when."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
from fake_device import FakeClock, FakeDevice, text
from single_run import single_run

from heliograph.errors import ProtocolError
from heliograph.serve.frames import Cancel, Launched, Load, Settings, Submit
from heliograph.serve.limits import Limits
from heliograph.serve.worker.engine import Engine

BLOCKS = 24


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice(units=1 + BLOCKS)


@pytest.fixture
def engine(device: FakeDevice) -> Engine:
    return Engine(device, FakeClock())


def submit(first: int = 1, *, copies: int = 1, seed: int = 0, count: int = 5, limit: int = 6, **more: object) -> Submit:
    rows = tuple((first + copy, seed + copy) for copy in range(copies))
    return Submit(rows, tuple((first + place) % 11 for place in range(count)), limit, **more)  # type: ignore[arg-type]


def run(engine: Engine, rounds: int = 1000) -> list[Launched]:
    launched = []
    while engine.busy and rounds:
        launched += engine.round()
        rounds -= 1
    return launched


def gained(launched: list[Launched]) -> tuple[dict[int, list[int]], dict[int, str]]:
    tokens: dict[int, list[int]] = defaultdict(list)
    ends = {}
    for gain in (gain for each in launched for gain in each.gains):
        tokens[gain.row] += gain.tokens
        if gain.end:
            assert gain.row not in ends
            ends[gain.row] = gain.end
    return tokens, ends


def free(engine: Engine) -> int:
    return engine._scheduler.blocks.free


def test_a_row_gains_the_tokens_of_its_single_run(engine: Engine, device: FakeDevice) -> None:
    order = submit(limit=9)
    assert engine.submit(order) == []
    tokens, ends = gained(run(engine))
    assert (tokens[1], ends[1]) == single_run(order, 0, device.text)
    assert not engine.busy
    assert free(engine) == BLOCKS


def test_copies_gain_what_single_runs_with_their_seeds_gain(engine: Engine, device: FakeDevice) -> None:
    order = submit(copies=4, seed=10, count=11, settings=Settings(temperature=1.0))
    engine.submit(order)
    tokens, _ = gained(run(engine))
    assert [tokens[row] for row in (1, 2, 3, 4)] == [single_run(order, 10 + row, device.text)[0] for row in range(4)]
    assert len({tuple(each) for each in tokens.values()}) == 4


def test_copies_compute_their_shared_prompt_once(engine: Engine, device: FakeDevice) -> None:
    engine.submit(submit(copies=4, count=17))  # 16 tokens are shared
    run(engine)
    assert sum(real for entry, _, real in device.launches if entry == "prefill") == 17 + 3


def test_a_seeded_row_has_the_same_tokens_whoever_comes_and_goes_beside_it(device: FakeDevice) -> None:
    order = submit(count=9, limit=10, seed=77, settings=Settings(temperature=1.0))
    expected = single_run(order, 77, device.text)[0]
    for others in range(1, 8):
        engine = Engine(FakeDevice(units=1 + BLOCKS), FakeClock())
        engine.submit(submit(100, copies=1 + others % 4, count=others, limit=others))
        run(engine, others % 3)
        engine.submit(order)
        launched = run(engine, 2)
        engine.submit(submit(200, count=20, limit=2))
        engine.cancel(Cancel((100,)))
        assert gained(launched + run(engine))[0][1] == expected


def test_least_holds_stop_tokens_back_and_then_lets_them_through(engine: Engine, device: FakeDevice) -> None:
    """Over many seeds, so that some rows stop and some reach their limit."""
    seen = set()
    for seed in range(20):
        order = submit(seed, seed=seed, limit=12, stops=(0, 1, 2, 3), least=5)
        engine.submit(order)
        tokens, ends = gained(run(engine))
        assert (tokens[seed], ends[seed]) == single_run(order, seed, device.text)
        assert len(tokens[seed]) >= 5
        seen.add(ends[seed])
    assert seen == {"stop", "length"}


def test_a_prompt_that_fills_the_context_ends_at_once_with_nothing(engine: Engine) -> None:
    engine.submit(submit(count=24))
    assert gained(run(engine)) == ({1: []}, {1: "length"})
    engine.submit(submit(2, count=23, limit=5))
    tokens, ends = gained(run(engine))
    assert (len(tokens[2]), ends[2]) == (1, "length")


@pytest.mark.parametrize("bad", [submit(9, count=25), submit(9, copies=5), submit(9, stops=(11,))])
def test_a_refused_submit_ends_each_of_its_rows_and_harms_nobody(
    engine: Engine, device: FakeDevice, bad: Submit
) -> None:
    order = submit()
    engine.submit(order)
    launched = run(engine, 2)
    ended = engine.submit(bad)
    assert [(each.row, each.end) for each in ended] == [(row, "refused") for row, _ in bad.rows]
    assert all(each.message for each in ended)
    assert gained(launched + run(engine))[0][1] == single_run(order, 0, device.text)[0]


def test_more_rows_than_the_limit_are_refused(device: FakeDevice) -> None:
    engine = Engine(device, FakeClock(), Limits(rows=3))
    assert engine.submit(submit(1, copies=3)) == []
    assert [each.end for each in engine.submit(submit(9))] == ["refused"]
    engine.cancel(Cancel((1,)))
    assert engine.submit(submit(10)) == []


@pytest.mark.parametrize("rows", [((1, 0),), ((5, 0), (5, 1))], ids=["under way", "twice"])
def test_a_number_that_is_used_twice_breaks_the_protocol(engine: Engine, rows: tuple[tuple[int, int], ...]) -> None:
    engine.submit(submit())
    with pytest.raises(ProtocolError):
        engine.submit(Submit(rows, (1,), 1))
    assert engine.submit(Submit(((5, 0), (6, 1)), (1,), 1)) == []


@pytest.mark.parametrize("rounds", range(12))
def test_a_cancel_frees_slots_and_blocks_at_once_whenever_it_comes(engine: Engine, rounds: int) -> None:
    engine.submit(submit(1, copies=4, count=17, limit=7))
    engine.submit(submit(9, count=17, limit=7))  # waits
    _, ends = gained(run(engine, rounds))
    before = {row for row in (1, 2, 3, 4, 9) if row not in ends}
    ended = engine.cancel(Cancel((1, 2, 3, 4, 9)))
    assert [(each.row, each.end) for each in ended] == [(row, "cancelled") for row in sorted(before)]
    assert not ended or ended[-1].load == Load(0, 0, BLOCKS)
    assert (free(engine), engine.busy) == (BLOCKS, False)
    assert engine._scheduler.load == Load(0, 0, BLOCKS)
    assert engine.cancel(Cancel((1, 9, 12345))) == []


def test_a_cancelled_row_leaves_room_in_the_same_round(engine: Engine) -> None:
    engine.submit(submit(1, copies=4))
    engine.submit(submit(9))
    run(engine, 6)
    engine.cancel(Cancel((2,)))
    (_, chunk) = engine.round()
    assert [gain.row for gain in chunk.gains] == [9]


def test_no_running_stream_waits_longer_than_one_round_while_a_long_prompt_is_stored(engine: Engine) -> None:
    engine.submit(submit(1, count=2, limit=20))
    engine.submit(submit(2, count=2, limit=20))
    run(engine, 2)
    engine.submit(submit(3, count=24))
    launched = run(engine, 3)
    assert [each.entry for each in launched] == ["decode", "prefill"] * 3
    assert all({gain.row for gain in each.gains} == {1, 2} for each in launched if each.entry == "decode")


def test_eight_streams_share_rounds_and_each_begins_before_any_ends() -> None:
    device = FakeDevice(text(concurrency=8), units=80, sizes={"decode": (1, 8), "prefill": (8,)})
    engine = Engine(device, FakeClock())
    orders = [submit(row, limit=12) for row in range(1, 9)]
    for order in orders:
        engine.submit(order)
    launched = run(engine)
    assert max(each.real for each in launched if each.entry == "decode") == 8
    starts, ends = {}, {}
    for number, each in enumerate(launched):
        for gain in each.gains:
            starts.setdefault(gain.row, number)
            ends[gain.row] = number
    assert max(starts.values()) < min(ends.values())
    tokens, _ = gained(launched)
    assert [tokens[row] for row in range(1, 9)] == [single_run(order, 0, device.text)[0] for order in orders]


def test_counters_add_up(engine: Engine, device: FakeDevice) -> None:
    """A request of n tokens counts n - 1 of rounds: its first comes from prefill."""
    for row, limit in ((1, 6), (2, 1), (3, 7)):
        engine.submit(submit(row, limit=limit))
    launched = run(engine)
    rounds = [each for each in launched if each.entry == "decode"]
    assert sum(len(gain.tokens) for each in rounds for gain in each.gains) == 5 + 0 + 6
    assert sum(each.real for each in launched if each.entry == "prefill") == 3 * 5
    assert [(each.entry, each.bucket, each.real) for each in launched] == device.launches
    assert all(each.nanoseconds == 1000 for each in launched)  # the clock is looked at before and after
    last = launched[-1]
    assert last.load == Load(0, 0, BLOCKS)


# ---- buckets that are not ready at the start -------------------------------------------------------------------------
def test_the_start_runs_in_the_buckets_that_are_ready(engine: Engine, device: FakeDevice) -> None:
    engine.submit(submit(1, copies=2, count=6))
    run(engine)
    assert {(entry, bucket) for entry, bucket, _ in device.launches} <= {
        ("decode", 1), ("decode", 4), ("prefill", 2), ("prefill", 8),
    }  # fmt: skip


def test_idle_gaps_build_the_largest_decode_bucket_first(device: FakeDevice) -> None:
    device.sizes = {"decode": (1, 2, 3, 4), "prefill": (2, 4, 6, 8)}
    engine = Engine(device, FakeClock())
    assert engine.unbuilt == 4
    while engine.unbuilt:
        engine.build()
    assert device.built[4:] == [("decode", 3), ("decode", 2), ("prefill", 6), ("prefill", 4)]
    engine.build()
    assert len(device.built) == 8


def test_a_start_builds_what_any_row_needs_first_and_rows_begin_as_soon_as_they_can() -> None:
    device = FakeDevice(sizes={"decode": (1, 2, 3, 4), "prefill": (2, 4, 6, 8)}, ready="none")
    engine = Engine(device, FakeClock())
    order = submit(1, limit=3)
    engine.submit(order)
    launched = list(engine.round())
    assert (launched, engine.starting, engine.unbuilt) == ([], True, 8)
    while engine.starting:
        engine.build()
        launched += engine.round()
    assert device.built == [("prefill", 8), ("decode", 4), ("prefill", 2), ("decode", 1)]
    assert [(each.entry, each.bucket, each.prepared) for each in launched] == [
        ("prefill", 8, 1), ("decode", 4, 2), ("decode", 4, 3)
    ]  # fmt: skip
    assert gained(launched)[0][1] == single_run(order, 0, device.text)[0]
    assert engine.testing == 4 * 1000  # the clock is looked at before and after
    while engine.unbuilt:
        engine.build()
    assert device.built[4:] == [("decode", 3), ("decode", 2), ("prefill", 6), ("prefill", 4)]


def test_a_bucket_that_was_built_is_used_from_then_on(engine: Engine, device: FakeDevice) -> None:
    engine.submit(submit(1, copies=2))
    run(engine, 3)
    assert device.launches[-1] == ("decode", 4, 2)
    engine.build()
    run(engine, 1)
    assert device.launches[-1] == ("decode", 2, 2)


def test_under_steady_load_every_bucket_is_built_one_in_a_stated_number_of_rounds(device: FakeDevice) -> None:
    every = 5
    engine = Engine(device, FakeClock(), Limits(rounds_between_builds=every))
    row, built = 1, []
    for number in range(4 * every):
        engine.submit(submit(row, limit=2))
        row += 1
        before = len(device.built)
        list(engine.round())
        if len(device.built) > before:
            built.append(number)
    assert len(device.built) == 6
    assert [later - earlier for earlier, later in pairwise(built)] == [every]
    assert engine.unbuilt == 0


def test_launches_say_how_many_buckets_are_ready(engine: Engine) -> None:
    engine.submit(submit())
    (first,) = run(engine, 1)
    engine.build()
    (second,) = run(engine, 1)
    assert (first.prepared, second.prepared) == (4, 5)
