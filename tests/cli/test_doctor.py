"""Each probe of `doctor` fails on a machine that lacks what it looks for, and passes on its twin that has it. Whether a
core fits is what a load would say."""

from __future__ import annotations

import json
import subprocess
import sys
from bisect import bisect_left
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from heliograph.cli.doctor import summary
from heliograph.cli.machine import PROBES, Facts, fit, judge, look
from heliograph.core.format import MIB, SLOTS
from heliograph.runtime.plan import MARGIN_PART, NODE_BYTES, least_units
from tiny_core import UNIT, tiny_core

GOOD = Facts(
    python=(3, 12),
    platform="linux x86_64",
    levels=("x86-64-v3", "generic"),
    families=("linear",),
    module_error="",
    slots_taken=(),
    address_limit=-1,
    descriptors=1 << 20,
    available=8 << 30,
    home_error="",
    disk_free=1 << 40,
    cuda="no driver library",
    torch=True,
)

FAULTS: dict[str, dict[str, Any]] = {
    "python": {"python": (3, 10)},
    "platform": {"platform": "darwin arm64"},
    "instruction set": {"levels": ()},
    "host kernels": {"families": ()},
    "kernel loading": {"module_error": "loading a kernel module: no /proc"},
    "address space": {"slots_taken": tuple(range(SLOTS))},
    "address-space limit": {"address_limit": 1 << 40},
    "open files": {"descriptors": 100},
    "memory": {"available": 1 << 20},
    "keys": {"home_error": "/home cannot be written"},
    "disk": {"disk_free": 1 << 20},
}


def verdicts(machine: Facts) -> dict[str, bool | None]:
    return {finding.probe: finding.ok for finding in judge(machine)}


def test_every_probe_has_a_machine_on_which_it_fails_or_is_for_information() -> None:
    assert {probe for probe, ok in verdicts(GOOD).items() if ok is not None} == set(FAULTS)
    assert len(PROBES) == len(judge(GOOD))


@pytest.mark.parametrize("probe", FAULTS)
def test_probe_fails_where_its_fact_is_bad_and_passes_on_the_twin(probe: str) -> None:
    assert verdicts(GOOD)[probe] is True
    bad = replace(GOOD, **FAULTS[probe])
    assert verdicts(bad)[probe] is False
    finding = next(finding for finding in judge(bad) if finding.probe == probe)
    assert finding.hint
    assert finding.found


def test_information_never_decides() -> None:
    assert {probe for probe, ok in verdicts(replace(GOOD, torch=False, cuda="sm_90")).items() if ok is None} == {
        "cuda",
        "torch",
    }


def test_this_machine_passes() -> None:
    assert [finding for finding in judge(look()) if finding.ok is False] == []


def test_a_limit_on_address_space_is_a_finding() -> None:
    limited = ["bash", "-c", 'ulimit -v 3000000 && exec "$0" "$@"', sys.executable, "-m", "heliograph"]
    run = subprocess.run([*limited, "doctor", "--json"], capture_output=True, text=True)
    assert run.returncode == 1, run.stderr
    refused = {finding["probe"] for finding in json.loads(run.stdout)["probes"] if finding["ok"] is False}
    assert refused == {"address space", "address-space limit"}


# ---- whether a core fits ---------------------------------------------------------------------------------------------
CORE = tiny_core(text=True).core


def test_units_fill_what_fixed_memory_executables_and_margin_leave() -> None:
    budget = 64 * MIB
    found = fit(CORE, budget)
    room = budget - budget // MARGIN_PART - found["fixed_bytes"] - NODE_BYTES * sum(each.nodes for each in CORE.graphs)
    assert (found["ok"], found["reason"], found["units"]) == (True, "", room // UNIT)
    assert CORE.text is not None
    assert found["tokens"] == found["units"] * CORE.text.block_tokens


def test_a_person_is_told_of_room_for_units_only_where_there_is_some() -> None:
    found = fit(CORE, 64 * MIB)
    assert f"then room for {found['units']} units = {found['tokens']} KV tokens" in summary(found)
    for none in (fit(CORE, 0), found | {"units": 0, "tokens": 0}):
        assert "fixed memory" in summary(none)
        assert "room" not in summary(none)


def test_one_byte_less_than_a_load_needs_does_not_fit() -> None:
    least = bisect_left(range(64 * MIB), True, key=lambda budget: fit(CORE, budget)["ok"])
    assert 0 < least < 64 * MIB
    assert fit(CORE, least)["units"] == least_units(CORE)
    short = fit(CORE, least - 1)
    assert (short["ok"], short["units"], short["tokens"]) == (False, 0, 0)
    assert short["reason"]
    assert short["fixed_bytes"] == fit(CORE, least)["fixed_bytes"]


def test_a_core_of_another_instruction_set_does_not_fit_whatever_memory_there_is() -> None:
    target = msgspec.structs.replace(CORE.target, arch="rv64")
    other = fit(msgspec.structs.replace(CORE, target=target), 64 * MIB)
    assert (other["ok"], other["units"]) == (False, fit(CORE, 64 * MIB)["units"])
    assert "rv64" in other["reason"]
