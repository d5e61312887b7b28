"""The checker on a CUDA draft, in its own processes, through the fake driver."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fake_cuda.control import FakeCuda
from heliograph.capture.checker import Checking
from heliograph.core.encoding import encode
from heliograph.core.manifest import Graph, Record
from heliograph.core.report import Request
from heliograph.core.sign import scratch_key
from heliograph.core.templates import EmptyNode, GraphTemplate, KernelNode, Node
from heliograph.core.write import DraftWriter
from heliograph.errors import CheckerError
from heliograph.runtime import replay
from heliograph.runtime.check import answer_to
from heliograph.runtime.plan import NODE_BYTES, PIECE, ROUNDING, check_executables, executable_limit
from heliograph.runtime.tries import Checker
from study import PROVENANCE, Drafted, ask, check, with_results
from tiny_core import TinyCore
from tiny_cuda_core import tiny_cuda_core

PARTS = tiny_cuda_core(weight_bytes=64 << 10)


@pytest.fixture(autouse=True)
def driver(fake_cuda: FakeCuda) -> FakeCuda:
    """The checker's processes open the same fake driver."""
    return fake_cuda


@contextmanager
def drafted(folder: Path, parts: TinyCore = PARTS) -> Iterator[Drafted]:
    key = scratch_key()
    with DraftWriter(folder) as writer:
        for data in parts.blobs.values():
            writer.put_blob(data)
        slices, _ = writer.put_weights([parts.image], parts.core.weights.cap)
        core = parts.with_core(weights=msgspec.structs.replace(parts.core.weights, slices=slices)).core
        graphs = parts.graphs_bytes()
        draft = writer.finish(core, PROVENANCE, graphs, key)
        yield Drafted(draft, key, core, graphs, ())


def planted(change: Callable[[Node], Node]) -> TinyCore:
    def altered(graph: GraphTemplate) -> GraphTemplate:
        return replace(graph, nodes=tuple(map(change, graph.nodes)))

    return replace(PARTS, graphs=tuple(map(altered, PARTS.graphs)))


def test_a_sound_draft_is_explored_and_confirmed(tmp_path: Path) -> None:
    """R22, B6"""
    with drafted(tmp_path) as made:
        explored = check(made)
        core = with_results(made.core, explored)
        assert core.self_tests == made.core.self_tests  # they were right
        made.draft.writer.finish(core, PROVENANCE, made.graphs, made.key)
        confirmed = check(made, "confirm")
    assert [each.outcome for each in explored.tries] == ["equal"] * 4
    assert [each.outcome for each in confirmed.tries] == ["equal"] * 2
    assert explored.narrowed == ()
    counters = {each.name: (each.recorded, each.rebuilt) for each in explored.counters}
    assert counters == {"graphs": (2, 2), "functions": (3, 3), "modules": (1, 1), "nodes": (14, 14), "edges": (12, 12)}
    assert all(graph.same_order and graph.flags == 9 for graph in explored.graphs)
    assert explored.peak_device_bytes >= 6 * (2 << 20)  # a page of each region
    assert not explored.torch_loaded


def test_scratch_that_is_read_before_it_is_written_is_found(tmp_path: Path) -> None:
    """B4"""

    def unwritten(node: Node) -> Node:
        writes = node.origin in ("tiny/clear, tiny.py:1", "tiny/clear, tiny.py:2") or node is copies[0]
        return EmptyNode(node.origin) if writes else node

    copies = [graph.nodes[1] for graph in PARTS.graphs]
    parts = planted(unwritten)
    with drafted(tmp_path, parts) as made:
        report = check(made)
    assert {each.outcome for each in report.tries if each.pattern == "ones"} == {"different"}
    found = {(each.role, each.offset, each.buffer) for each in report.narrowed}
    assert ("scratch", 0, "scratch/copy/0/1") in found


def test_a_kernel_that_faults_is_told_with_its_graph_and_no_node(tmp_path: Path) -> None:
    """R26"""

    def wild(node: Node) -> Node:
        if isinstance(node, KernelNode) and node.origin == "tiny/write":
            return replace(node, params=struct.pack("<QQ", 0x7000_0000_0000, 7), refs=())
        return node

    with drafted(tmp_path, planted(wild)) as made:
        report = check(made)
    (ended,) = report.tries
    assert ended.outcome == "fault"
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in ended.fault
    assert "in step/1, case 0, no node" in ended.fault


def test_a_kernel_that_hangs_ends_with_the_time_limit(tmp_path: Path) -> None:
    """The third function has the parameters of ``spin``: an address and a time."""
    functions = tuple(
        msgspec.structs.replace(each, name="spin") if each.name == "write" else each for each in PARTS.core.functions
    )

    def hanging(node: Node) -> Node:
        if isinstance(node, KernelNode) and node.origin == "tiny/write":
            return replace(node, params=node.params[:8] + struct.pack("<Q", 3_600_000_000))
        return node

    with drafted(tmp_path, planted(hanging).with_core(functions=functions)) as made:
        report = check(made, limit=3)
    (ended,) = report.tries
    assert ended.outcome == "timeout"
    assert "in step/1, case 0" in ended.fault


def test_the_draft_is_checked_on_the_device_that_is_asked_for(tmp_path: Path) -> None:
    """A13. There are two."""
    with drafted(tmp_path) as made:
        checking = Checking(made.key, (), limit_seconds=60, index=1)
        assert checking.run(made.draft, "explore").tries[0].outcome == "equal"
        with pytest.raises(CheckerError, match="device"):
            replace(checking, index=2).run(made.draft, "explore")


def test_a_draft_for_another_device_is_an_error_on_stderr(tmp_path: Path) -> None:
    other = PARTS.with_core(target=msgspec.structs.replace(PARTS.core.target, arch="sm_100"))
    with drafted(tmp_path, other) as made:
        done = ask(made)
    assert done.returncode == 1
    assert b"TargetError" in done.stderr


def test_a_draft_that_does_not_fit_is_refused_with_numbers(tmp_path: Path) -> None:
    with drafted(tmp_path) as made:
        done = ask(made, memory_limit=64 << 20)
        assert check(made, memory_limit=900 << 20).tries[0].outcome == "equal"
    assert done.returncode == 1
    assert b"OutOfMemoryError" in done.stderr
    assert str(64 << 20).encode() in done.stderr


def test_an_executable_may_take_its_nodes_share_and_one_piece_of_the_driver() -> None:
    """What all executables may share is no one's alone."""
    for rounding, piece in ((0, 0), (1 << 20, 1 << 20), (ROUNDING, PIECE)):
        assert executable_limit(700, rounding) == NODE_BYTES * 700 + piece


def test_what_an_h200_takes_is_within_the_plan() -> None:
    """64 executables of 601 nodes took 64 x 2,228,224 bytes, in pieces of 2 MiB."""
    assert executable_limit(601, ROUNDING) >= 4 << 20
    check_executables(64 * 601, 64 * 2_228_224)


def test_executables_that_together_take_more_than_the_plan_are_refused() -> None:
    """Each of twenty may take a piece beyond its share, all of them together not."""
    nodes, each = 100, executable_limit(100, ROUNDING)
    check_executables(8 * nodes, 8 * each)
    with pytest.raises(CheckerError, match=str(20 * each)):
        check_executables(20 * nodes, 20 * each)


def test_the_checker_adds_its_executables_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with drafted(tmp_path) as made:
        explored = check(made)
        request = Request(public_key=made.key.public_bytes.hex(), mode="explore", workers=1, limit_seconds=60)

    def answer(extra: int) -> Record:
        graphs = tuple(
            msgspec.structs.replace(each, device_bytes=each.device_bytes + extra) for each in explored.graphs
        )
        monkeypatch.setattr(Checker, "run", lambda self: msgspec.structs.replace(explored, graphs=graphs))
        return answer_to([str(tmp_path), str(os.getppid())], encode(request))

    assert answer(0) == explored
    with pytest.raises(CheckerError, match="14 nodes"):
        answer(ROUNDING)


class Pooled:
    """A template on a driver that keeps the memory of destroyed executables for the next ones. ``others``: what another
    process takes meanwhile, by instantiation."""

    def __init__(self, needs: int, others: Sequence[int] = ()) -> None:
        self.needs, self.others = needs, list(others)
        self.kept = self.live = self.most = 0

    def instantiate(self, flags: int) -> PooledExecutable:
        grown = max(0, self.needs - self.kept)
        self.kept -= self.needs - grown
        self.live += 1
        self.most = max(self.most, self.live)
        return PooledExecutable(self, grown + (self.others.pop(0) if self.others else 0))


class PooledExecutable:
    def __init__(self, of: Pooled, device_bytes: int) -> None:
        self.of, self.device_bytes = of, device_bytes

    def close(self) -> None:
        self.of.kept += self.of.needs
        self.of.live -= 1


def measured(template: Pooled) -> Any:
    return replay._measured(template, Graph(name="decode/1", flags=0, nodes=100, edges=0), ROUNDING)  # type: ignore[arg-type]


def test_memory_that_the_driver_uses_again_hides_no_executable() -> None:
    """The least that was measured is what it says."""
    needs = 100 * NODE_BYTES + PIECE + 1
    large = Pooled(needs, others=(64 << 20,))
    with pytest.raises(CheckerError, match=f"decode/1: found {needs} bytes .* at most {needs - 1}:"):
        measured(large)
    assert large.live == 0


def test_what_another_process_takes_for_a_while_is_not_believed() -> None:
    """The twin. One executable is left, the one that was measured."""
    sound = Pooled(100 * NODE_BYTES, others=(64 << 20,) * 5)
    assert measured(sound).device_bytes == 100 * NODE_BYTES
    assert (sound.live, sound.most) == (1, 6)
