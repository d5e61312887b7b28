"""Ranges are handed out by one fixed rule; regions are taken from the device and given back whole."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.capture.arena import Arena, Ranges
from heliograph.capture.buffers import BufferTable
from heliograph.core.format import BUFFER_ALIGNMENT, region_base, region_span
from heliograph.device.host import open_host
from heliograph.errors import CaptureError, OutOfMemoryError, UsageError


def test_the_lowest_free_range_is_taken() -> None:
    ranges = Ranges()
    first, second, third = (ranges.take(100) for _ in range(3))
    assert [first, second, third] == [0, 512, 1024]
    ranges.give(first)
    ranges.give(third)
    assert ranges.take(50) == first
    assert ranges.take(50) == third


def test_neighbours_that_are_free_are_one_range() -> None:
    ranges = Ranges()
    taken = [ranges.take(256) for _ in range(4)]
    for offset in (taken[1], taken[2]):
        ranges.give(offset)
    assert ranges.take(768) == taken[1]


def test_a_free_range_at_the_end_grows_instead_of_being_left_behind() -> None:
    ranges = Ranges()
    last = [ranges.take(256), ranges.take(256)][1]
    ranges.give(last)
    assert ranges.take(5000) == last
    assert ranges.peak == last + 5376


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5000)), max_size=60))
def test_ranges_that_are_out_never_touch_and_every_order_of_calls_has_one_answer(calls: list) -> None:
    def play() -> list[int]:
        ranges, out, given = Ranges(), {}, []
        for take, number in calls:
            if take or not out:
                offset = ranges.take(number)
                given.append(offset)
                out[offset] = number
            else:
                offset = sorted(out)[number % len(out)]
                ranges.give(offset)
                del out[offset]
            places = sorted(out.items())
            for (a, size), (b, _) in pairwise(places):
                assert a + size + BUFFER_ALIGNMENT <= b
            assert all(offset % BUFFER_ALIGNMENT == 0 for offset in out)
            assert ranges.peak >= max((offset + size for offset, size in places), default=0)
            assert ranges.taken == len(out)
        return given

    assert play() == play()


def test_a_second_graph_finds_all_of_scratch_free_and_the_largest_counts() -> None:
    table = BufferTable(0, units=0)
    table.take("a", 10_000, "u8", (10_000,))
    table.next_graph()
    assert table.all[table.take("b", 100, "u8", (100,))].offset == 0
    table.next_graph()
    assert table.sizes()["scratch"] == 10_240 + 256


def test_private_memory_lies_behind_all_tensors() -> None:
    table = BufferTable(0, units=0, private=4096)
    table.take("tensor", 100, "u8", (100,))
    workspace = table.take_workspace("workspace", (10,), "f32")
    assert table.all[workspace].offset == 4096
    table.give_workspace(workspace)
    assert table.all[table.take_workspace("other", (10,), "f32")].offset == 4096
    table.next_graph()
    assert table.sizes()["scratch"] == 4096 + 512


def test_what_grows_comes_with_all_its_units() -> None:
    table = BufferTable(3, units=5)
    table.add("state/fixed", "state", 100, "u8", (100,))
    grown = table.add("state/kv", "state", 1000, "u8", (1000,), grows=True)
    assert table.sizes()["state"] == table.all[grown].offset + 5000
    assert table.address(grown) == region_base(3, "state") + 512


def test_two_buffers_of_one_name_are_refused() -> None:
    table = BufferTable(0, units=0)
    table.add("io/x", "io", 4, "f32", (1,))
    with pytest.raises(CaptureError):
        table.add("io/x", "io", 4, "f32", (1,))


def test_an_arena_takes_its_regions_at_their_addresses_and_gives_them_back() -> None:
    device = open_host(workers=1)
    before = device.counters()
    with Arena(device, 5, {"io": 100, "scratch": 5000, "weights": 0}) as arena:
        assert arena.region("io").address == region_base(5, "io")
        assert arena.mapped_bytes == 4096 + 8192
        assert [pool.ranges for pool in arena.pools()] == [
            ((region_base(5, "io"), 100),),
            ((region_base(5, "scratch"), 5000),),
        ]
    after = device.counters()
    assert after["reservations_live"] == before["reservations_live"]
    assert after["bytes_mapped"] == before["bytes_mapped"]
    with pytest.raises(UsageError):
        arena.region("io")
    device.close()


@pytest.mark.parametrize(("scratch", "fits"), [(64 << 20, False), (1 << 20, True)])
def test_an_arena_that_does_not_fit_leaves_nothing(scratch: int, fits: bool) -> None:
    device = open_host(workers=1, memory_limit=32 << 20)
    sizes = {"io": 4096, "scratch": scratch}
    if fits:
        Arena(device, 0, sizes).close()
    else:
        with pytest.raises(OutOfMemoryError):
            Arena(device, 0, sizes)
    assert device.counters()["reservations_live"] == 0
    assert device.counters()["bytes_mapped"] == 0
    device.close()


def test_a_region_larger_than_its_span_is_refused() -> None:
    device = open_host(workers=1)
    with pytest.raises(OutOfMemoryError) as refused:
        Arena(device, 0, {"io": region_span("io") + 1})
    assert "io" in refused.value.doing
    device.close()


def test_shuffled_frees_leave_one_free_range() -> None:
    rng = random.Random(7)
    ranges = Ranges()
    taken = [ranges.take(rng.randrange(2000)) for _ in range(200)]
    peak = ranges.peak
    rng.shuffle(taken)
    for offset in taken:
        ranges.give(offset)
    assert ranges.take(peak - 512) == 0
    assert ranges.peak == peak
