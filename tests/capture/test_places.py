"""What a model and its buckets have in memory, where it lies, and that it has memory on CUDA once it lies there."""

from __future__ import annotations

import torch
from torch import nn

from heliograph.capture import CaptureSpec, EntrySpec, StateSpec, TensorSpec
from heliograph.capture.buffers import BufferTable
from heliograph.capture.cuda.walk import BackedTable
from heliograph.capture.places import Places
from heliograph.capture.weights import model_weights

ENTRY = EntrySpec("run", ({"rows": 2},), {"x": TensorSpec(("rows", 4), "f32")}, lambda m, **more: {})
(BUCKET,) = ENTRY.buckets
SPEC = CaptureSpec(
    "test",
    (ENTRY,),
    state={"cache": StateSpec((8,), "f32", grows=True), "total": StateSpec((4,), "f32")},
    shared={"scale": TensorSpec((4,), "f32")},
    units=3,
)


def places(buffers: BufferTable) -> Places:
    return Places(SPEC, model_weights(nn.Linear(4, 4)), buffers, {"bias"})


def test_a_bucket_is_placed_once_with_shared_inputs_last() -> None:
    buffers = BufferTable(0, units=3)
    placed = places(buffers)
    results = {"y": torch.zeros(2, 4)}
    inputs, outputs = placed.inputs(ENTRY, BUCKET), placed.outputs(ENTRY, BUCKET, results)
    count = len(buffers.all)
    assert (placed.inputs(ENTRY, BUCKET), placed.outputs(ENTRY, BUCKET, results)) == (inputs, outputs)
    assert len(buffers.all) == count
    graph = placed.graph(ENTRY, BUCKET)
    assert [buffers.all[field.buffer].name for field in graph.inputs] == ["io/run/2/in/x", "io/shared/scale"]
    assert [buffers.all[field.buffer].name for field in graph.outputs] == ["io/run/2/out/y"]


def test_what_may_be_written_persists_and_the_state_that_grows_lies_last() -> None:
    buffers = BufferTable(0, units=3)
    placed = places(buffers)
    assert {name: buffers.all[index].role for name, index in placed.weights.items()} == {
        "weight": "weights", "bias": "persistent"
    }  # fmt: skip
    assert list(placed.state) == ["cache", "total"], "as the spec has them"
    assert buffers.all[placed.state["cache"]].offset > buffers.all[placed.state["total"]].offset
    assert [buffers.shape(index) for index in placed.state.values()] == [(3, 8), (4,)]


class Backed:
    """A region that keeps how far it was asked to reach."""

    def __init__(self) -> None:
        self.reached: list[int] = []

    def reach(self, size: int) -> None:
        self.reached.append(size)


def test_on_cuda_a_buffer_has_memory_once_it_is_placed_a_growing_one_with_all_units() -> None:
    regions = {role: Backed() for role in ("weights", "persistent", "state", "io")}
    buffers = BackedTable(0, units=3, regions=regions)  # type: ignore[arg-type]
    places(buffers).inputs(ENTRY, BUCKET)
    ends: dict[str, list[int]] = {role: [] for role in regions}
    for buffer in buffers.all:
        ends[buffer.role].append(buffer.offset + buffer.size * (3 if buffer.grows else 1))
    assert {role: region.reached for role, region in regions.items()} == ends
    assert ends["state"][-1] > ends["state"][0] + 2 * 8 * 4
