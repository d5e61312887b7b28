"""Addresses are fixed: a taken one is a clear refusal, and nothing that others hold is ever replaced."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from heliograph.core.format import ROLES, region_base, region_span
from study import Script

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def taker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("taker") / "taken.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-O1", "-o", library, HERE / "taken.cpp"], check=True)
    return library


@pytest.mark.parametrize(
    ("address", "size"),
    [
        (region_base(0, "weights"), 1 << 30),
        (region_base(0, "weights") + region_span("weights") - 4096, 4096),
        (region_base(0, "io") + (100 << 30), 4096),
        (region_base(0, "state"), 4096),
    ],
    ids=["a gibibyte at the base", "the last page of a span", "one page in the middle", "a page of the last region"],
)
def test_memory_mapped_before_main_is_refused_and_left_alone(
    script: Script, taker: Path, address: int, size: int
) -> None:
    preload = {"LD_PRELOAD": str(taker), "TAKEN_ADDRESS": hex(address), "TAKEN_BYTES": str(size)}
    result = script("load_once.py", environment=preload)
    assert result["outcome"] == "AddressTakenError"
    assert f"{address:x}" in str(result["found"])


def test_memory_mapped_between_the_regions_is_in_nobodys_way(script: Script, taker: Path) -> None:
    between = region_base(0, "weights") + region_span("weights")
    preload = {"LD_PRELOAD": str(taker), "TAKEN_ADDRESS": hex(between), "TAKEN_BYTES": "4096"}
    assert script("load_once.py", environment=preload)["outcome"] == "loaded"


@pytest.mark.parametrize("start", range(5))
def test_threads_that_map_memory_all_the_time_change_nothing(script: Script, start: int) -> None:
    result = script("load_once.py", "threads")
    assert result["outcome"] == "loaded"
    assert result["passed"] == [True, True, True]
    assert result["wrong"] == []


def test_a_hundred_starts_find_the_addresses_of_every_slot_free() -> None:
    """Address space layout randomisation gives each start another layout."""
    reserve = (
        "import sys\n"
        "from heliograph._native import HostDevice\n"
        "device = HostDevice(workers=1)\n"
        "held = [device.reserve(int(a), int(s)) for a, s in (pair.split(':') for pair in sys.argv[1:])]\n"
        "print(len(held))\n"
    )
    ranges = [f"{region_base(slot, role)}:{region_span(role)}" for slot in range(8) for role in ROLES]
    for start in range(0, 100, 10):
        running = [
            subprocess.Popen([sys.executable, "-c", reserve, *ranges], stdout=subprocess.PIPE, text=True)
            for _ in range(10)
        ]
        assert [process.communicate()[0].strip() for process in running] == [str(len(ranges))] * 10, start
