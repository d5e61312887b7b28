"""Core names: made from arch, ranks and minute, or chosen."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from itertools import islice

import pytest

from heliograph.core.names import automatic_names, check_name, is_core_name
from heliograph.errors import UsageError

MINUTE = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)


@pytest.mark.parametrize("arch", ["sm90", "x86-64-v3", "x86-64-v4+vnni+bf16", "generic"])
@pytest.mark.parametrize("ranks", [1, 16])
def test_an_automatic_name_is_a_core_name(arch: str, ranks: int) -> None:
    """M25"""
    for name in islice(automatic_names(arch, ranks, MINUTE), 17):
        assert is_core_name(name)


def test_the_second_core_of_a_minute_gets_a_suffix() -> None:
    names = list(islice(automatic_names("sm90", 1, MINUTE), 3))
    assert names == ["sm90-tp1-202611300900", "sm90-tp1-202611300900-2", "sm90-tp1-202611300900-3"]


def test_the_time_of_a_name_is_utc() -> None:
    there = datetime(2026, 11, 30, 1, 0, tzinfo=timezone(timedelta(hours=-8)))
    assert next(automatic_names("sm90", 1, there)) == "sm90-tp1-202611300900"


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "-x", "a/b", "a\\b", "a b", "a\n", "a\0", "\u00e9", "a" * 129]
)
def test_a_name_that_is_no_plain_file_name_is_refused(name: str) -> None:
    """M25"""
    assert not is_core_name(name)
    with pytest.raises(UsageError):
        check_name(name)


@pytest.mark.parametrize("name", ["a", "A1", "a.b", "a" * 128, "0", "x86-64-v4+vnni+bf16-tp1-202611300900"])
def test_a_plain_name_is_accepted(name: str) -> None:
    """M25"""
    assert check_name(name) == name
