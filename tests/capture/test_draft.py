"""A recording becomes manifest, columns and blobs; and is refused when it is no longer what was captured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_models import mlp, mlp_spec
from torch import nn

from heliograph.capture import CaptureSpec, EntrySpec, Example, Recording, TensorSpec, record
from heliograph.capture.draft import put_recording, with_results
from heliograph.capture.record_model import Retain
from heliograph.core.columns import read_columns
from heliograph.core.format import DEFAULT_CAP, UNKNOWN_DIGEST
from heliograph.core.report import Padding, SelfTestResult
from heliograph.core.templates import CopyNode, KernelNode, decode_catalogue
from heliograph.core.write import DraftWriter
from heliograph.device.host import open_host
from heliograph.errors import ExportManifestError, UsageError


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[DraftWriter]:
    with DraftWriter(tmp_path / "cores") as writer:
        yield writer


def recorded(spec: CaptureSpec, model: nn.Module | None = None, retain: Retain = "template") -> Recording:
    return record(model or nn.Module(), spec, device=open_host(workers=1), retain=retain)


def spec_of(**changes: object) -> CaptureSpec:
    inputs = {"x": TensorSpec(("rows", 4), "f32"), "ids": TensorSpec(("rows",), "i32")}
    entry = EntrySpec("run", ({"rows": 2}, {"rows": 3}), inputs, lambda m, x, ids: {"y": torch.relu(x) + ids[:, None]})
    return replace(CaptureSpec("test", (entry,)), **changes)


def given(entry: str, bucket: dict[str, int], seed: int) -> Example:
    rows = bucket["rows"]
    return Example({"x": bytes([seed]) * 16 * rows, "ids": bytes(4 * rows)}, {"rows": rows - 1})


def test_every_node_is_written_in_capture_order_with_its_references(writer: DraftWriter) -> None:
    with recorded(mlp_spec(rows=(1, 3)), mlp()) as recording:
        contents = put_recording(recording, writer, DEFAULT_CAP)
        graphs = decode_catalogue(read_columns(memoryview(contents.graphs)))
        for template, graph in zip(graphs, recording.graphs, strict=True):
            assert template.nodes == graph.nodes
            for node in template.nodes:
                if isinstance(node, KernelNode):
                    function = contents.core.functions[node.function]
                    assert [ref.at for ref in node.refs] == [
                        at for at in function.pointers if any(node.params[at : at + 8])
                    ]
                else:
                    assert isinstance(node, CopyNode)
            assert [(edge.source, edge.target) for edge in template.edges] == [
                (i, i + 1) for i in range(len(graph.nodes) - 1)
            ]


def test_both_ways_to_retain_write_the_same_bytes(writer: DraftWriter) -> None:
    written = []
    for retain in ("template", "executable"):
        with recorded(mlp_spec(), mlp(), retain) as recording:
            contents = put_recording(recording, writer, DEFAULT_CAP)
            written.append((contents.core, contents.graphs))
    assert written[0] == written[1]


def test_self_tests_run_three_inputs_and_the_first_again_with_results_unknown(writer: DraftWriter) -> None:
    with recorded(spec_of()) as recording:
        core = put_recording(recording, writer, DEFAULT_CAP).core
    for test in core.self_tests:
        first, second, third, last = (case.inputs for case in test.cases)
        assert len({first, second, third}) == 3
        assert first == last
        assert {case.outputs for case in test.cases} == {UNKNOWN_DIGEST}
    results = tuple(
        SelfTestResult(graph=graph, outputs=("aa" * 32,) * 4, states=("bb" * 32,) * 4)
        for graph in reversed(range(len(core.graphs)))
    )
    filled = with_results(core, results)
    assert {(case.outputs, case.state) for test in filled.self_tests for case in test.cases} == {("aa" * 32, "bb" * 32)}


def test_padding_rows_of_inputs_and_outputs_are_told_and_only_numbers_may_be_poisoned(writer: DraftWriter) -> None:
    with recorded(spec_of(examples=given)) as recording:
        padding = put_recording(recording, writer, DEFAULT_CAP).padding
    assert [each for each in padding if each.graph == 1 and each.case == 0] == [
        Padding(graph=1, case=0, field="x", output=False, real_bytes=32, poison=True),
        Padding(graph=1, case=0, field="ids", output=False, real_bytes=8, poison=False),
        Padding(graph=1, case=0, field="y", output=True, real_bytes=32, poison=False),
    ]


@pytest.mark.parametrize(("seeds", "right"), [(1, False), (2, True)])
def test_examples_that_are_always_the_same_are_refused(seeds: int, right: bool, writer: DraftWriter) -> None:
    examples = lambda entry, bucket, seed: given(entry, bucket, seed % seeds)  # noqa: E731
    with recorded(spec_of(examples=examples)) as recording:
        if right:
            put_recording(recording, writer, DEFAULT_CAP)
        else:
            with pytest.raises(UsageError):
                put_recording(recording, writer, DEFAULT_CAP)


def test_a_graph_that_was_reset_is_not_written(writer: DraftWriter) -> None:
    with recorded(spec_of()) as recording:
        put_recording(recording, writer, DEFAULT_CAP)
        recording.graphs[1].graph.reset()
        with pytest.raises(ExportManifestError):
            put_recording(recording, writer, DEFAULT_CAP)


def test_a_recording_whose_memory_was_given_back_is_not_written(writer: DraftWriter) -> None:
    with recorded(spec_of()) as recording:
        recording.arena.close()
        with pytest.raises(ExportManifestError):
            put_recording(recording, writer, DEFAULT_CAP)


def test_regions_hold_their_buffers_and_ascend(writer: DraftWriter) -> None:
    with recorded(mlp_spec(slot=2), mlp()) as recording:
        core = put_recording(recording, writer, DEFAULT_CAP).core
    bases = [int(region.base, 16) for region in core.regions]
    assert bases == sorted(bases)
    sizes = {region.role: region.size for region in core.regions}
    assert {buffer.role for buffer in core.buffers} == sizes.keys()
    assert all(buffer.offset + buffer.size <= sizes[buffer.role] for buffer in core.buffers)
    assert {region.role for region in core.regions if region.initial} == {"constants", "persistent"}
