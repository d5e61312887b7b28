"""The checker finds what a graph must not depend on, says where, and survives graphs that fault or hang."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from heliograph.core.manifest import Slice
from heliograph.core.report import Report, Request, Try
from heliograph.core.sign import scratch_key
from heliograph.core.write import DraftWriter
from heliograph.runtime.check import main
from heliograph.runtime.narrow import FLOOR
from heliograph.runtime.plan import NODE_BYTES
from study import PROVENANCE, UNITS, Drafted, Study, ask, check, draft, with_results

ROWS = (1, 3)


@contextmanager
def drafted(folder: Path, *plant: str, **more: object) -> Iterator[Drafted]:
    with DraftWriter(folder) as writer:
        yield draft(Study(rows=ROWS, plant=plant, **more), writer)  # type: ignore[arg-type]


def by_kind(report: Report) -> dict[tuple[str, bool], Try]:
    return {(each.pattern, each.poisoned_padding): each for each in report.tries}


def keep(made: Drafted, explored: Report) -> None:
    """Puts results, and the one range of scratch that was found to matter, into the draft."""
    (found,) = explored.narrowed
    kept = Slice(offset=found.offset, size=found.size, blob=made.draft.writer.put_blob(found.content))
    core = with_results(made.core, explored)
    regions = tuple(
        msgspec.structs.replace(each, initial=(kept,)) if each.role == "scratch" else each for each in core.regions
    )
    core = msgspec.structs.replace(core, regions=regions)
    made.draft.writer.finish(core, PROVENANCE, made.graphs, made.key)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Report]:
    """A sound draft explored, and confirmed once its results are in it."""
    with drafted(tmp_path_factory.mktemp("clean")) as made:
        explored = check(made)
        core = with_results(made.core, explored)
        made.draft.writer.finish(core, PROVENANCE, made.graphs, made.key)
        return explored, check(made, "confirm")


def test_a_sound_draft_is_equal_under_all_patterns(clean: tuple[Report, Report]) -> None:
    report, _ = clean
    assert [(each.pattern, each.poisoned_padding, each.outcome) for each in report.tries] == [
        ("zeros", False, "equal"),
        ("ones", True, "equal"),
        ("integers", False, "equal"),
        ("left-overs", False, "equal"),
    ]
    assert report.narrowed == ()


def test_counts_order_and_flags_are_compared(clean: tuple[Report, Report]) -> None:
    report, _ = clean
    counters = {each.name: (each.recorded, each.rebuilt) for each in report.counters}
    assert counters == {"graphs": (2, 2), "functions": (5, 5), "modules": (1, 1), "nodes": (14, 14), "edges": (12, 12)}
    assert all(graph.same_order and graph.flags == 0 for graph in report.graphs)
    assert [graph.graph for graph in report.graphs] == [0, 1]


def test_costs_are_measured(clean: tuple[Report, Report]) -> None:
    report, _ = clean
    assert report.peak_host_bytes > 10 << 20
    assert report.peak_device_bytes > len(Study().weights)
    assert all(graph.host_bytes > 0 and graph.instantiate_nanoseconds > 0 for graph in report.graphs)
    assert {"verify", "reserve", "weights", "replays"} <= {phase.name for phase in report.phases}


def test_no_torch_is_in_the_checker(clean: tuple[Report, Report]) -> None:
    assert not clean[0].torch_loaded


def test_self_tests_have_a_result_for_each_case(clean: tuple[Report, Report]) -> None:
    report, _ = clean
    for result in report.self_tests:
        assert len(result.outputs) == len(result.states) == 3
        assert len(set(result.outputs)) == 3  # the total grows from case to case


def test_a_draft_with_its_results_is_confirmed(clean: tuple[Report, Report]) -> None:
    _, report = clean
    assert report.mode == "confirm"
    assert [(each.pattern, each.poisoned_padding, each.outcome) for each in report.tries] == [
        ("zeros", False, "equal"),
        ("left-overs", True, "equal"),
    ]
    assert len({report.core_digest, clean[0].core_digest}) == 2


def test_a_wrong_result_in_the_draft_is_not_confirmed(tmp_path: Path) -> None:
    with drafted(tmp_path) as made:
        core = with_results(made.core, check(made))
        test = core.self_tests[1]
        wrong = msgspec.structs.replace(test.cases[2], state="1" * 64)
        tests = (core.self_tests[0], msgspec.structs.replace(test, cases=(*test.cases[:2], wrong)))
        made.draft.writer.finish(msgspec.structs.replace(core, self_tests=tests), PROVENANCE, made.graphs, made.key)
        report = check(made, "confirm")
    (difference,) = report.tries[0].differences
    assert (difference.graph, difference.case, difference.field) == (1, 2, "state")


def test_a_word_read_before_it_is_written_is_narrowed(tmp_path: Path) -> None:
    with drafted(tmp_path, "peek") as made:
        report = check(made)
        hole = next(buffer for buffer in made.core.buffers if buffer.name == "scratch/hole")
    (found,) = report.narrowed
    assert found.offset <= hole.offset + 9000 < found.offset + found.size == found.offset + FLOOR
    assert (found.role, found.buffer) == ("scratch", "scratch/hole")
    assert found.content == bytes(FLOOR)
    tries = by_kind(report)
    assert (
        tries["ones", True].outcome == tries["ones", False].outcome == tries["integers", False].outcome == "different"
    )
    assert {each.field for each in tries["ones", False].differences} == {"out", "sum", "state"}


def test_what_was_narrowed_and_kept_is_confirmed_under_all_patterns(tmp_path: Path) -> None:
    with drafted(tmp_path, "peek") as made:
        keep(made, check(made))
        report = check(made, "confirm")
    assert [(each.pattern, each.poisoned_padding, each.outcome) for each in report.tries] == [
        ("zeros", False, "equal"),
        ("ones", True, "equal"),
        ("integers", False, "equal"),
        ("left-overs", False, "equal"),
    ]


def test_a_counter_in_scratch_is_found_and_not_confirmed(tmp_path: Path) -> None:
    """Nothing puts scratch back between two launches, so what is kept there must be what replays leave there too."""
    with drafted(tmp_path, "bump") as made:
        explored = check(made)
        hole = next(buffer for buffer in made.core.buffers if buffer.name == "scratch/hole")
        keep(made, explored)
        confirmed = check(made, "confirm")
    (found,) = explored.narrowed
    assert (found.role, found.offset) == ("scratch", (hole.offset + 512) // FLOOR * FLOOR)
    outcomes = {each.pattern: each.outcome for each in confirmed.tries}
    assert outcomes == {"zeros": "equal", "ones": "equal", "integers": "equal", "left-overs": "different"}


def test_a_counter_in_persistent_memory_starts_from_its_initial_content(tmp_path: Path) -> None:
    with drafted(tmp_path, "bump", counter_in="persistent") as made:
        report = check(made)
    assert {each.outcome for each in report.tries} == {"equal"}
    assert report.narrowed == ()


def test_constants_that_a_replay_writes_are_told(tmp_path: Path) -> None:
    with drafted(tmp_path, "poke") as made:
        report = check(made)
    (found,) = report.narrowed
    assert (found.role, found.buffer, found.offset) == ("constants", "constants/table", 0)


def test_a_real_row_that_depends_on_padding_is_found_and_not_blamed_on_scratch(tmp_path: Path) -> None:
    with drafted(tmp_path, "leak") as made:
        report = check(made)
    tries = by_kind(report)
    assert tries["ones", True].outcome == "different"
    assert {each.graph for each in tries["ones", True].differences} == {1}  # one row has no padding
    assert tries["ones", False].outcome == "equal"
    assert report.narrowed == ()


def test_a_real_row_that_depends_on_padding_is_not_confirmed(tmp_path: Path) -> None:
    with drafted(tmp_path, "leak") as made:
        core = with_results(made.core, check(made))
        made.draft.writer.finish(core, PROVENANCE, made.graphs, made.key)
        tries = by_kind(check(made, "confirm"))
    assert tries["zeros", False].outcome == "equal"  # as the draft states
    assert tries["left-overs", True].outcome == "different"
    assert tries["left-overs", False].outcome == "equal"


def test_a_dependence_on_padding_that_one_on_scratch_hid_is_not_confirmed(tmp_path: Path) -> None:
    with drafted(tmp_path, "peek", "leak") as made:
        explored = check(made)
        tries = by_kind(explored)
        assert tries["ones", True].outcome == tries["ones", False].outcome == "different"
        keep(made, explored)
        tries = by_kind(check(made, "confirm"))
    assert tries["ones", True].outcome == "different"
    assert tries["ones", False].outcome == "equal"


def test_a_nan_fails_though_all_tries_have_it(tmp_path: Path) -> None:
    with drafted(tmp_path, "spoil") as made:
        report = check(made)
    first = by_kind(report)["zeros", False]
    assert first.outcome == "different"
    assert {(each.field, each.nan) for each in first.differences} >= {("out", True)}


@pytest.mark.parametrize(("plant", "outcome"), [("trap", "fault"), ("hang", "timeout")])
def test_a_fault_or_hang_under_poison_names_graph_and_node(tmp_path: Path, plant: str, outcome: str) -> None:
    with drafted(tmp_path, plant) as made:
        report = check(made, limit=8)
    tries = by_kind(report)
    assert tries["zeros", False].outcome == "equal"
    ended = tries["ones", True]
    assert ended.outcome == outcome
    assert "step/1" in ended.fault
    assert f"node 3 (study.{plant})" in ended.fault
    assert tries["left-overs", False].outcome == "equal"


def test_no_try_outlives_a_checker_that_was_killed(tmp_path: Path) -> None:
    with drafted(tmp_path, "hang") as made:
        request = Request(public_key=made.key.public_bytes.hex(), mode="explore", workers=2, limit_seconds=100)
        command = [sys.executable, "-m", "heliograph.runtime.check", str(made.draft.path), str(os.getpid())]
        checker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        assert checker.stdin is not None
        checker.stdin.write(msgspec.json.encode(request))
        checker.stdin.close()
        hanging = wait_for(lambda: next((pid for pid in children(checker.pid) if "ones" in arguments(pid)), None))
        checker.kill()
        checker.wait()
        assert wait_for(lambda: not arguments(hanging))


def wait_for(found: Callable[[], Any], seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while not (result := found()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
    return result


def children(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def arguments(pid: int) -> list[str]:
    """Of a running process; none once it has ended."""
    try:
        return [each for each in Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0") if each]
    except (FileNotFoundError, ProcessLookupError):
        return []


def test_units_of_the_self_tests_are_mapped(clean: tuple[Report, Report]) -> None:
    assert UNITS > 0
    counters = {item.name: item.value for item in clean[0].device}
    assert counters["executables_created"] == "2"  # one at a time, each once
    assert counters["executables_live"] == "0"


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_a_draft_is_opened_with_its_scratch_key_alone(tmp_path: Path) -> None:
    with drafted(tmp_path) as made:
        made.key = scratch_key()
        done = ask(made)
    assert done.returncode == 1
    assert b"UntrustedError" in done.stderr or b"SignatureError" in done.stderr
    assert done.stdout == b""


def test_a_draft_altered_behind_the_signature_is_an_error_on_stderr(tmp_path: Path) -> None:
    with drafted(tmp_path) as made:
        blob = made.draft.path / "blobs" / made.core.weights.slices[0].blob
        blob.chmod(0o644)
        data = bytearray(blob.read_bytes())
        data[0] ^= 1
        blob.write_bytes(data)
        done = ask(made)
    assert done.returncode == 1
    assert b"TamperedError" in done.stderr


def test_a_draft_has_to_fit_a_limited_device_one_graph_at_a_time(tmp_path: Path) -> None:
    with drafted(tmp_path) as made:
        fixed = sum(region.size for region in made.core.regions)
        largest = NODE_BYTES * max(graph.nodes for graph in made.core.graphs)
        assert check(made, memory_limit=int(1.03 * (fixed + largest)) + (64 << 10)).tries[0].outcome == "equal"
        done = ask(made, memory_limit=fixed)
    assert done.returncode == 1
    assert b"OutOfMemoryError" in done.stderr
    assert str(fixed).encode() in done.stderr


@pytest.mark.parametrize("stdin", [b"", b"{}", b'{"public_key":1}', msgspec.json.encode(b"x")])
def test_a_request_that_is_none_is_a_usage_error(tmp_path: Path, stdin: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", type("Stdin", (), {"buffer": type("B", (), {"read": staticmethod(lambda: stdin)})}))
        assert main([str(tmp_path), str(os.getppid())]) == 1


def test_requests_survive_their_encoding() -> None:
    request = Request(public_key="00" * 32, mode="explore", workers=1, limit_seconds=5)
    assert msgspec.json.decode(msgspec.json.encode(request), type=Request) == request
