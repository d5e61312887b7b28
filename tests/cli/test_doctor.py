"""Each probe of `doctor` fails on a machine that lacks what it looks for, and passes on its twin that has it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heliograph.cli.machine import PROBES, Facts, judge, look
from heliograph.core.format import SLOTS

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
