"""What the checker's report does to an export: merged, or a reason to stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from heliograph.capture.checker import Checking, check_confirmed, check_report, findings, merged, painted
from heliograph.core.manifest import Blob, Core, Graph, Region, Slice, Target, Weights
from heliograph.core.report import Counter, Difference, GraphReport, Narrowed, Report, SelfTestResult, Try
from heliograph.core.sign import scratch_key
from heliograph.core.write import Draft, DraftWriter
from heliograph.errors import CheckerError


def narrowed(offset: int, content: bytes, **changes: Any) -> Narrowed:
    fields: dict[str, Any] = {"role": "scratch", "buffer": "scratch/empty", **changes}
    return Narrowed(offset=offset, size=len(content), content=content, **fields)


def made(pattern: str = "zeros", **changes: Any) -> Try:
    fields: dict[str, Any] = {"poisoned_padding": False, "outcome": "equal", "differences": (), "fault": ""}
    return Try(pattern=pattern, nanoseconds=1, **{**fields, **changes})


def graph(**changes: Any) -> GraphReport:
    fields: dict[str, Any] = {
        "graph": 0,
        "counters": (Counter(name="nodes", recorded=2, rebuilt=2),),
        "same_order": True,
        "flags": 0,
        "device_bytes": 1,
        "host_bytes": 1,
        "instantiate_nanoseconds": 1,
    }
    return GraphReport(**{**fields, **changes})


def report(**changes: Any) -> Report:
    fields: dict[str, Any] = {
        "mode": "explore",
        "core_digest": "",
        "device": (),
        "counters": (),
        "graphs": (graph(),),
        "tries": (made(), made("ones")),
        "narrowed": (),
        "self_tests": (SelfTestResult(graph=0, outputs=("00" * 32,), states=("00" * 32,)),),
        "peak_host_bytes": 0,
        "peak_device_bytes": 0,
        "phases": (),
        "torch_loaded": False,
    }
    return Report(**{**fields, **changes})


NAN = Difference(graph=0, case=1, field="y", nan=True)
DIFFERENT = Difference(graph=0, case=1, field="y")
POISONED = made("ones", outcome="different", poisoned_padding=True, differences=(DIFFERENT,))


def test_ranges_that_overlap_or_touch_are_painted_into_one() -> None:
    found = [(512, b"b" * 256), (0, b"a" * 512), (600, b"c" * 300), (4096, b"d")]
    assert painted(found) == {0: b"a" * 512 + b"b" * 88 + b"c" * 300, 4096: b"d"}


def test_a_range_inside_another_is_painted_over_it() -> None:
    assert painted([(0, b"a" * 10), (2, b"b")]) == {0: b"aab" + b"a" * 7}


def test_scratch_that_matters_becomes_initial_content(core: Core, tmp_path: Path) -> None:
    with DraftWriter(tmp_path / "cores") as writer:
        changed = merged(core, report(narrowed=(narrowed(256, b"x" * 256),)), writer)
        scratch = next(region for region in changed.regions if region.role == "scratch")
        assert [(part.offset, part.size) for part in scratch.initial] == [(256, 256)]
        assert scratch.initial[0].blob in writer.blobs()


def test_what_the_capture_kept_in_scratch_stays_beside_what_was_found(core: Core, tmp_path: Path) -> None:
    with DraftWriter(tmp_path / "cores") as writer:
        there = (Slice(offset=4096, size=512, blob=writer.put_blob(b"k" * 512)),)
        regions = tuple(
            msgspec.structs.replace(region, initial=there) if region.role == "scratch" else region
            for region in core.regions
        )
        core = msgspec.structs.replace(core, regions=regions)
        changed = merged(core, report(narrowed=(narrowed(256, b"x" * 256),)), writer)
        scratch = next(region for region in changed.regions if region.role == "scratch")
        assert [(part.offset, part.size) for part in scratch.initial] == [(256, 256), (4096, 512)]
        assert scratch.initial[1] == there[0]


def test_a_report_without_findings_changes_nothing(core: Core, tmp_path: Path) -> None:
    with DraftWriter(tmp_path / "cores") as writer:
        assert merged(core, report(), writer) is core


def test_a_replay_that_writes_constants_stops_the_export(core: Core, tmp_path: Path) -> None:
    found = narrowed(0, b"x", role="constants", buffer="constants/table")
    with DraftWriter(tmp_path / "cores") as writer:
        with pytest.raises(CheckerError) as refused:
            merged(core, report(narrowed=(found,)), writer)
        assert "constants/table" in refused.value.found


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"tries": (made(outcome="fault", fault="signal 11, in run/2, case 0, node 3"),)}, "node 3"),
        ({"tries": (made(outcome="timeout", fault="no end"),)}, "timeout"),
        ({"tries": (made(outcome="different", differences=(NAN,)),)}, "NaN"),
        ({"tries": (made(), POISONED, made("ones"))}, "padding"),
        ({"torch_loaded": True}, "torch"),
        ({"counters": (Counter(name="functions", recorded=2, rebuilt=1),)}, "functions"),
        ({"graphs": (graph(counters=(Counter(name="nodes", recorded=2, rebuilt=3),)),)}, "nodes"),
        ({"graphs": (graph(same_order=False),)}, "order"),
        ({"graphs": (graph(flags=1),)}, "flags"),
        ({"self_tests": ()}, "no result"),
    ],
)
def test_what_cannot_be_kept_stops_the_export(core: Core, wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(CheckerError) as refused:
        check_report(report(**wrong), core)
    assert told in refused.value.found
    check_report(report(), core)


def test_a_nan_that_only_other_scratch_brings_is_a_finding_and_not_yet_a_refusal(core: Core) -> None:
    check_report(report(tries=(made(), made("ones", outcome="different", differences=(NAN,)))), core)


def test_padding_is_not_blamed_when_scratch_alone_makes_a_difference(core: Core) -> None:
    check_report(report(tries=(made(), POISONED, made("ones", outcome="different", differences=(DIFFERENT,)))), core)


def test_a_confirming_run_may_find_nothing_more(core: Core) -> None:
    left = report(tries=(made(), made("ones", outcome="different", differences=(DIFFERENT,))))
    with pytest.raises(CheckerError) as refused:
        check_confirmed(left, core, findings(report(narrowed=(narrowed(256, b"x"),))))
    assert "y" in refused.value.found
    assert "scratch/empty" in refused.value.found
    check_confirmed(report(), core, ())


def test_a_checker_that_cannot_load_the_draft_says_why(core: Core, tmp_path: Path) -> None:
    with DraftWriter(tmp_path / "cores") as writer, pytest.raises(CheckerError) as refused:
        Checking(scratch_key(), ()).run(Draft(writer.path, core, writer), "explore")
    assert "Error" in refused.value.found


@pytest.fixture
def core() -> Core:
    """The manifest of one graph; only what the checker's face looks at is in it."""
    region = Region(role="scratch", base="0x1", span=1 << 20, size=1 << 16, grow=0, grow_at=0, initial=())
    return Core(
        format=0,
        features=(),
        model="test",
        target=Target(device="host", arch="generic", abi=1, ranks=1, processors=0, shared_optin=0, driver=0),
        limits=(),
        numerics="row-invariant",
        slot=0,
        regions=(region, msgspec.structs.replace(region, role="state")),
        buffers=(),
        modules=(),
        functions=(),
        graphs=(Graph(name="run/2", flags=0, nodes=2, edges=1),),
        entries=(),
        graphs_file=Blob(digest="", size=0),
        weights=Weights(cap=1 << 20, size=0, slices=(), tensors=()),
        choices=(),
        self_tests=(),
        text=None,
        blobs=(),
    )
