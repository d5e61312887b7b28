"""Core names: made from arch, ranks and minute, parsed from the right."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.core.names import CoreName, automatic_names, check_name, is_core_name
from heliograph.errors import UsageError

MINUTE = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)


@pytest.mark.parametrize("arch", ["sm90", "x86-64-v3", "x86-64-v4+vnni+bf16", "generic", "a-tp9-202601010000"])
@pytest.mark.parametrize("ranks", [1, 16])
@pytest.mark.parametrize("count", [1, 2, 17])
def test_a_name_is_parsed_from_the_right(arch: str, ranks: int, count: int) -> None:
    name = CoreName(arch, ranks, MINUTE, count)
    assert CoreName.parse(str(name)) == name
    assert is_core_name(str(name))


def test_the_second_core_of_a_minute_gets_a_suffix() -> None:
    names = list(islice(automatic_names("sm90", 1, MINUTE), 3))
    assert names == ["sm90-tp1-202611300900", "sm90-tp1-202611300900-2", "sm90-tp1-202611300900-3"]


def test_the_time_of_a_name_is_utc() -> None:
    there = datetime(2026, 11, 30, 1, 0, tzinfo=timezone(timedelta(hours=-8)))
    assert next(automatic_names("sm90", 1, there)) == "sm90-tp1-202611300900"


@pytest.mark.parametrize("name", ["mine", "sm90-tp1", "sm90-tp0-202611300900", "sm90-tp1-202613300900",
                                  "sm90-tp1-20261130090", "sm90-tp1-202611300900-0", "sm90-tp1-202611300900-",
                                  "-tp1-202611300900", "sm90-tp\u0661-202611300900"])  # fmt: skip
def test_a_name_that_somebody_chose_has_no_parts(name: str) -> None:
    assert CoreName.parse(name) is None


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


@given(st.text(max_size=30))
def test_no_text_crashes_the_parser(name: str) -> None:
    parsed = CoreName.parse(name)
    assert parsed is None or str(parsed) == name or parsed.count == 1
