"""The recorder alone: a stream that only keeps what it is given, and lowerings that are one launch each."""

from __future__ import annotations

import gc
import struct
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pytest
import torch
from stand_ins import KeptStream, copying, function, one_launch
from torch import Tensor, nn

from heliograph.capture.moved import check_nothing_moved
from heliograph.capture.settings import fixed_settings
from heliograph.capture.spec import CaptureSpec, EntrySpec, StateSpec, TensorSpec
from heliograph.capture.tape import Copy, Launch
from heliograph.capture.walk import Walk, WalkedGraph, Walker
from heliograph.capture.weights import model_weights
from heliograph.core.format import region_base
from heliograph.core.layout import padded
from heliograph.errors import (
    AddressMovedError,
    CaptureError,
    ForeignMemoryError,
    UnsupportedOpError,
    UsageError,
    ValueReadError,
)
from heliograph.ops.launch import LOWERINGS, Recorder, View

OPS = (
    "aten.addmm.default", "aten.mm.default", "aten.relu.default", "aten.add.Tensor", "aten.mul.Tensor",
    "aten.sigmoid.default", "aten.full.default", "aten.native_layer_norm.default", "aten.cat.default",
    "aten.clone.default", "aten._to_copy.default", "aten.arange.start_step", "aten.where.self",
    "aten.scalar_tensor.default", "aten.full_like.default",
)  # fmt: skip

Call = Callable[..., Mapping[str, Tensor]]


@pytest.fixture(autouse=True)
def lowerings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list]:
    """The stand-in lowerings, and the calls that they got."""
    seen: list = []
    for name in list(LOWERINGS):
        monkeypatch.delitem(LOWERINGS, name)
    for name in OPS:
        monkeypatch.setitem(LOWERINGS, name, one_launch(name, seen))
    monkeypatch.setitem(LOWERINGS, "aten.copy_.default", copying)
    return seen


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


def spec_of(call: Call, buckets: tuple = ({"rows": 2},), **more: object) -> CaptureSpec:
    inputs = more.pop("inputs", {"x": TensorSpec(("rows", 4), "f32")})
    return CaptureSpec("test", (EntrySpec("run", buckets, inputs, call),), **more)


def walk(model: nn.Module, spec: CaptureSpec, stream: KeptStream | None = None, units: int = 0, **more: object) -> Walk:
    with fixed_settings():
        walked = Walk(Walker(model, spec, model_weights(model)), units=units, **more)
        for entry in spec.entries:
            for bucket in entry.buckets:
                walked.graph(entry, bucket, stream, function if stream is not None else None)
    return walked


def record(call: Call, model: nn.Module | None = None, **more: object) -> tuple[Walk, WalkedGraph]:
    walked = walk(model or nn.Module(), spec_of(call, **more), units=more.get("units", 0))
    return walked, walked.graphs[0]


def launches(graph: WalkedGraph) -> list[str]:
    return [step.name for step in graph.steps if isinstance(step, Launch)]


# ---- what becomes of a model ---------------------------------------------------------------------------------------
def test_an_mlp_becomes_its_ops_in_order_and_a_copy_of_the_result() -> None:
    _, graph = record(lambda m, x: {"y": m(x)}, Mlp())
    assert launches(graph) == ["aten.addmm.default", "aten.relu.default", "aten.addmm.default"]
    assert isinstance(graph.steps[-1], Copy)
    assert [field.name for field in graph.placed.inputs] == ["x"]
    assert [field.name for field in graph.placed.outputs] == ["y"]


def test_every_pointer_is_stored_as_buffer_and_offset_that_give_its_literal_address() -> None:
    walked, graph = record(lambda m, x: {"y": m(x)}, Mlp())
    found = 0
    for step in graph.steps:
        for ref in step.refs if isinstance(step, Launch) else ():
            address = struct.unpack_from("<Q", step.params, ref.at)[0]
            assert address == walked.buffers.address(ref.buffer) + ref.offset
            found += 1
    assert found == 4 + 2 + 4


def test_the_stream_gets_what_the_tape_keeps() -> None:
    stream = KeptStream()
    walked = walk(Mlp(), spec_of(lambda m, x: {"y": m(x)}), stream)
    steps = walked.graphs[0].steps
    kept = [(step.name, step.blocks, step.params) for step in steps if isinstance(step, Launch)]
    assert stream.launches == kept
    copies = [(step.to.address, step.source.address, step.size) for step in steps if isinstance(step, Copy)]
    assert stream.copies == copies


def test_buffers_are_named_by_module_op_output_and_bucket() -> None:
    walked, _ = record(lambda m, x: {"y": m(x)}, Mlp(), buckets=({"rows": 2}, {"rows": 5}))
    names = [buffer.name for buffer in walked.buffers.all]
    assert names[:4] == ["weights/first.weight", "weights/first.bias", "weights/second.weight", "weights/second.bias"]
    assert "io/run/2/in/x" in names
    assert "io/run/5/out/y" in names
    assert "scratch/first/addmm.0/out0/run/2" in names
    assert "scratch/relu.0/out0/run/5" in names


def test_inputs_of_a_bucket_are_one_span_and_outputs_the_next() -> None:
    inputs = {"x": TensorSpec(("rows", 4), "f32"), "z": TensorSpec(("rows", 4), "f32")}
    walked, _ = record(lambda m, x, z: {"a": x + z, "b": x * z}, inputs=inputs, buckets=({"rows": 2}, {"rows": 3}))
    placed = [graph.placed for graph in walked.graphs]
    offsets = [walked.buffers.all[field.buffer].offset for g in placed for field in (*g.inputs, *g.outputs)]
    assert offsets == sorted(offsets)


def test_origins_name_op_module_and_line_without_a_folder() -> None:
    _, graph = record(lambda m, x: {"y": m(x)}, Mlp())
    line = Mlp.forward.__code__.co_firstlineno + 1
    assert graph.steps[0].origin == f"aten.addmm.default first test_record_host.py:{line}"
    assert graph.steps[-1].origin == "aten.copy_.default - -"


def test_tied_weights_are_one_buffer() -> None:
    model = Mlp()
    model.second = nn.Linear(4, 8)
    model.second.weight = model.first.weight
    walked, _ = record(lambda m, x: {"y": m.first(x), "z": m.second(x)}, model)
    weights = [buffer.name for buffer in walked.buffers.all if buffer.role == "weights"]
    assert weights == ["weights/first.weight", "weights/first.bias", "weights/second.bias"]


def test_the_model_has_its_own_parameters_back_after_a_run_that_failed() -> None:
    model = Mlp()
    before = {name: id(parameter) for name, parameter in model.named_parameters()}
    with pytest.raises(UnsupportedOpError):
        record(lambda m, x: {"y": torch.erfinv(m(x))}, model)
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == before


def test_views_cost_nothing_and_keep_their_storage_alive() -> None:
    def call(m: nn.Module, x: Tensor) -> dict[str, Tensor]:
        part = torch.relu(x)[1:].t()
        other = torch.sigmoid(x)
        return {"y": part + other[0, :1]}

    walked, graph = record(call)
    assert launches(graph) == ["aten.relu.default", "aten.sigmoid.default", "aten.add.Tensor"]
    by_name = {buffer.name: buffer for buffer in walked.buffers.all}
    relu, sigmoid = by_name["scratch/relu.0/out0/run/2"], by_name["scratch/sigmoid.0/out0/run/2"]
    assert relu.offset != sigmoid.offset
    add = graph.steps[2]
    assert isinstance(add, Launch)
    assert [ref.offset for ref in add.refs[:2]] == [16, 0]


def test_a_dead_tensor_gives_its_range_to_the_next_one() -> None:
    def call(m: nn.Module, x: Tensor) -> dict[str, Tensor]:
        for _ in range(6):
            x = torch.relu(x)
        return {"y": x}

    walked, _ = record(call)
    offsets = [buffer.offset for buffer in walked.buffers.all if buffer.role == "scratch"]
    assert offsets == [0, 512] * 3


def test_an_uninitialised_tensor_gets_memory_when_it_is_first_written() -> None:
    def call(m: nn.Module, x: Tensor) -> dict[str, Tensor]:
        early = torch.empty(2, 4)
        y = torch.relu(x)
        early.copy_(y)
        return {"y": early}

    walked, _ = record(call)
    names = [buffer.name for buffer in walked.buffers.all if buffer.role == "scratch"]
    assert names == ["scratch/relu.0/out0/run/2", "scratch/copy_.0/written/run/2"]


# ---- ops that write ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "change",
    [
        lambda x, y: y.add_(x),
        lambda x, y: torch.add(y, x, out=y),
        lambda x, y: y[:, 1:].mul_(x[:, 1:]),
        lambda x, y: y.sigmoid_(),
        lambda x, y: y.fill_(1.5),
        lambda x, y: y.zero_(),
    ],
)
def test_a_writing_op_without_a_lowering_is_its_fresh_form_and_a_copy(change: Callable) -> None:
    def call(m: nn.Module, x: Tensor) -> dict[str, Tensor]:
        y = torch.relu(x)
        change(x, y)
        return {"y": y}

    walked, graph = record(call)
    relu = walked.buffers.find("scratch/relu.0/out0/run/2")
    writes = [s for s in graph.steps[2:-1] if (isinstance(s, Copy) and s.to.buffer == relu) or isinstance(s, Launch)]
    assert writes, "the result is copied into the tensor that was to be written"
    result = graph.steps[-1]
    assert isinstance(result, Copy)
    assert result.source.buffer == relu


def test_in_place_views_move_no_data() -> None:
    def call(m: nn.Module, x: Tensor) -> dict[str, Tensor]:
        y = torch.relu(x)
        y.unsqueeze_(0).squeeze_(0)
        return {"y": y}

    _, graph = record(call)
    assert launches(graph) == ["aten.relu.default"]


def test_a_lowering_may_return_several_tensors() -> None:
    _, graph = record(lambda m, x: dict(zip("abc", torch.native_layer_norm(x, [4], None, None, 1e-5), strict=True)))
    assert [field.name for field in graph.placed.outputs] == ["a", "b", "c"]


def test_lowerings_get_types_by_name_and_numbers_as_they_are(lowerings: list) -> None:
    record(lambda m, x: {"y": x.to(torch.bfloat16), "z": x + 2})
    assert lowerings[0][2] == {"dtype": "bf16"}
    assert lowerings[1][1][1] == 2


def test_expanded_tensors_keep_a_stride_of_zero(lowerings: list) -> None:
    record(lambda m, x: {"y": x + x[:1].expand(2, 4)})
    assert lowerings[0][1][1].strides == (0, 1)


def test_a_written_buffer_of_the_model_is_told_and_becomes_persistent() -> None:
    model = nn.Module()
    model.register_buffer("steps", torch.zeros(2, 4))

    def call(m: nn.Module, x: Tensor) -> dict[str, Tensor]:
        m.steps.add_(1)
        return {"y": x + m.steps}

    spec = spec_of(call)
    first = walk(model, spec)
    assert first.written == {"steps"}
    second = walk(model, spec, written=frozenset(first.written))
    assert second.buffers.all[second.places.weights["steps"]].role == "persistent"
    check_nothing_moved(first, second)


# ---- constants -----------------------------------------------------------------------------------------------------
def test_a_tensor_made_from_a_list_is_a_constant() -> None:
    walked, graph = record(lambda m, x: {"y": x + torch.tensor([1.0, 2.0, 3.0, 4.0])})
    ((buffer, values),) = walked.constants.items()
    assert walked.buffers.all[buffer].role == "constants"
    assert values.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert isinstance(graph.steps[0], Launch)
    assert graph.steps[0].refs[1].buffer == buffer


def test_a_tensor_made_from_an_array_is_a_constant() -> None:
    walked, _ = record(lambda m, x: {"y": x + torch.from_numpy(np.ones(4, np.float32))})
    assert [values.tolist() for values in walked.constants.values()] == [[1.0] * 4]


def test_a_constant_that_is_written_becomes_a_copy_of_its_own() -> None:
    def call(m: nn.Module, x: Tensor) -> dict[str, Tensor]:
        c = torch.tensor([1.0, 2.0, 3.0, 4.0])
        before = x + c
        c.copy_(x[0])
        return {"before": before, "after": x + c}

    walked, graph = record(call)
    ((constant, _),) = walked.constants.items()
    first, copied, written = graph.steps[:3]
    assert isinstance(first, Launch)
    assert first.refs[1].buffer == constant
    assert isinstance(copied, Copy)
    assert (copied.source.buffer, copied.size) == (constant, 16)
    assert isinstance(written, Copy)
    assert written.to.buffer == copied.to.buffer != constant


def test_values_of_a_constant_may_be_read() -> None:
    seen: list = []

    def call(m: nn.Module, x: Tensor) -> dict[str, Tensor]:
        c = torch.tensor([3, 4])
        seen.append((c.tolist(), int(c[1]), bool(torch.tensor(True)), torch.tensor(2.5).item()))
        return {"y": x + 1}

    record(call)
    assert seen == [([3, 4], 4, True, 2.5)]


def test_values_of_a_constant_that_was_written_may_not_be_read() -> None:
    def call(m: nn.Module, x: Tensor) -> dict[str, Tensor]:
        c = torch.tensor([1.0])
        c.copy_(x[0, :1])
        return {"y": x + c.item()}

    with pytest.raises(ValueReadError):
        record(call)


# ---- refusals ------------------------------------------------------------------------------------------------------
def _reads() -> dict[str, Callable[[Tensor], object]]:
    return {
        "item": lambda x: x[0, 0].item(),
        "tolist": lambda x: x.tolist(),
        "numpy": lambda x: x.numpy(),
        "asarray": lambda x: np.asarray(x),
        "data_ptr": lambda x: x.data_ptr(),
        "bool": lambda x: bool(x[0, 0]),
        "int": lambda x: int(x[0, 0]),
        "float": lambda x: float(x[0, 0]),
        "index": lambda x: [1, 2][x[0, 0].long()],
        "equal": lambda x: torch.equal(x, x),
        "contains": lambda x: 3.0 in x,
        "nonzero": lambda x: torch.nonzero(x),
        "mask": lambda x: x[x > 0],
        "storage": lambda x: x.untyped_storage().data_ptr(),
        "dlpack": lambda x: torch.utils.dlpack.to_dlpack(x),
        "tensor": lambda x: torch.tensor([x[0, 0], x[0, 1]]),
    }


@pytest.mark.parametrize("read", _reads().values(), ids=_reads().keys())
def test_reading_a_value_is_refused_with_the_models_line(read: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    for op in ("aten.gt.Scalar", "aten.eq.Scalar", "aten.any.default"):
        monkeypatch.setitem(LOWERINGS, op, one_launch(op))

    def call(m: nn.Module, x: Tensor) -> dict[str, Tensor]:
        read(torch.relu(x))
        return {"y": x + 1}

    with pytest.raises(ValueReadError) as refused:
        record(call)
    assert f"{__file__}:{read.__code__.co_firstlineno}" in refused.value.found


def test_an_op_without_a_lowering_is_refused_with_shapes_type_and_line() -> None:
    call = lambda m, x: {"y": torch.erfinv(x)}  # noqa: E731
    with pytest.raises(UnsupportedOpError) as refused:
        record(call)
    assert "aten.erfinv.default of (2, 4) f32" in refused.value.found
    assert f"{__file__}:{call.__code__.co_firstlineno}" in refused.value.found


def test_an_op_that_gets_its_lowering_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOWERINGS, "aten.erfinv.default", one_launch("erfinv"))
    _, graph = record(lambda m, x: {"y": torch.erfinv(x)})
    assert launches(graph) == ["erfinv"]


@pytest.mark.parametrize(
    "draw", [lambda x: torch.rand_like(x), lambda x: x.normal_(), lambda x: torch.dropout(x, 0.5, True)]
)
def test_random_numbers_are_refused(draw: Callable) -> None:
    with pytest.raises(UnsupportedOpError) as refused:
        record(lambda m, x: {"y": draw(x)})
    assert "random" in refused.value.required


def test_a_tensor_that_is_not_the_models_is_refused_by_name() -> None:
    table = torch.ones(4)
    with pytest.raises(ForeignMemoryError) as refused:
        record(lambda m, x: {"y": x + table})
    assert "'table'" in refused.value.found


def test_a_plain_attribute_is_refused_and_a_buffer_is_not() -> None:
    class Scaled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    model = Scaled()
    model.scale = torch.ones(4)
    with pytest.raises(ForeignMemoryError) as refused:
        record(lambda m, x: {"y": m(x)}, model)
    assert "'self.scale'" in refused.value.found
    del model.scale
    model.register_buffer("scale", torch.ones(4), persistent=False)
    record(lambda m, x: {"y": m(x)}, model)


def test_a_tensor_of_another_recording_is_refused() -> None:
    kept: list[Tensor] = []

    def keep(m: nn.Module, x: Tensor) -> dict[str, Tensor]:
        kept.append(torch.relu(x))
        return {"y": kept[0]}

    record(keep)
    with pytest.raises(ForeignMemoryError):
        record(lambda m, x: {"y": x + kept[0]})


def test_a_tensor_kept_from_another_bucket_is_refused() -> None:
    model = nn.Module()

    def call(m: nn.Module, x: Tensor) -> dict[str, Tensor]:
        if not hasattr(m, "kept"):
            m.kept = torch.relu(x)
        return {"y": x + m.kept[0]}

    with pytest.raises(ForeignMemoryError):
        record(call, model, buckets=({"rows": 2}, {"rows": 3}))


def test_a_model_that_counts_its_calls_in_python_is_found() -> None:
    calls: list[int] = []

    def call(m: nn.Module, x: Tensor) -> dict[str, Tensor]:
        calls.append(0)
        return {"y": torch.relu(x) if len(calls) == 1 else torch.sigmoid(x)}

    spec = spec_of(call)
    first, second = walk(nn.Module(), spec), walk(nn.Module(), spec)
    with pytest.raises(AddressMovedError) as refused:
        check_nothing_moved(first, second)
    assert "relu" in refused.value.found


def test_a_node_that_depends_on_the_number_of_units_is_found() -> None:
    state = {"cache": StateSpec((4,), "f32", grows=True)}

    def whole(m: nn.Module, x: Tensor, cache: Tensor) -> dict[str, Tensor]:
        return {"y": torch.relu(cache)[:2]}

    def first(m: nn.Module, x: Tensor, cache: Tensor) -> dict[str, Tensor]:
        return {"y": torch.relu(cache[:2])}

    for call, right in ((whole, False), (first, True)):
        spec = spec_of(call, state=state, units=3)
        runs = [walk(nn.Module(), spec, units=units) for units in (4, 3)]
        if right:
            check_nothing_moved(*runs)
        else:
            with pytest.raises(AddressMovedError):
                check_nothing_moved(*runs)


def test_a_pointer_behind_the_first_unit_of_growing_state_is_refused() -> None:
    state = {"cache": StateSpec((4,), "f32", grows=True)}
    with pytest.raises(ForeignMemoryError) as refused:
        record(lambda m, x, cache: {"y": torch.relu(cache[2])}, state=state, units=3)
    assert "first unit" in refused.value.required


@pytest.mark.parametrize(
    "result", [lambda x: x, lambda x: {}, lambda x: {"y": 3}, lambda x: {"y": x[:0]}, lambda x: {"x": x}]
)
def test_outputs_that_cannot_be_stored_are_refused(result: Callable) -> None:
    with pytest.raises(UsageError):
        record(lambda m, x: result(x))


def test_a_lowering_whose_parameter_block_is_not_the_kernels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of(lambda m, x: {"y": torch.relu(x)})

    def other(kernel: object) -> object:
        stated = function(kernel)
        stated.param_bytes += 8
        return stated

    with pytest.raises(CaptureError), fixed_settings():
        Walk(Walker(nn.Module(), spec, ()), units=0).graph(spec.entries[0], {"rows": 2}, KeptStream(), other)


# ---- the same bytes every time -------------------------------------------------------------------------------------
def test_two_runs_are_equal_in_every_byte_whatever_the_collector_does() -> None:
    def cyclic(m: nn.Module, x: Tensor) -> dict[str, Tensor]:
        y = m(x)
        ring: list = [y]
        ring.append(ring)
        gc.collect() if gc.isenabled() else None
        return {"y": y + 1}

    model, spec = Mlp(), spec_of(cyclic, buckets=({"rows": 2}, {"rows": 3}))
    first, second = walk(model, spec), walk(model, spec)
    assert first.buffers.all == second.buffers.all
    assert [graph.steps for graph in first.graphs] == [graph.steps for graph in second.graphs]


def test_scratch_is_shared_by_all_graphs_and_what_lies_behind_it_moves_nothing() -> None:
    model, spec = Mlp(), spec_of(lambda m, x: {"y": m(x)}, buckets=({"rows": 2}, {"rows": 300}))
    walked = walk(model, spec)
    scratch = [buffer for buffer in walked.buffers.all if buffer.role == "scratch"]
    assert min(b.offset for b in scratch if b.name.endswith("/2")) == min(
        b.offset for b in scratch if b.name.endswith("/300")
    )
    assert walked.buffers.sizes()["scratch"] >= 300 * 8 * 4
    assert walked.buffers.address(0) == region_base(0, "weights")


def test_private_memory_of_a_smaller_bucket_may_be_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that needs more room for 3 rows than for 8: both fit, whichever is captured last."""

    def greedy(recorder: Recorder, args: tuple, kwargs: Mapping, outs: tuple[View, ...]) -> None:
        room = recorder.scratch((100_000 if outs[0].shape[0] == 3 else 100,), "u8")
        one_launch("relu")(recorder, (*args, room), {}, outs)

    monkeypatch.setitem(LOWERINGS, "aten.relu.default", greedy)
    spec = spec_of(lambda m, x: {"y": torch.relu(x) + 1}, buckets=({"rows": 3}, {"rows": 8}))
    first = walk(nn.Module(), spec)
    private = 4096
    second = walk(nn.Module(), spec, private=private)
    check_nothing_moved(first, second)
    assert second.buffers.sizes()["scratch"] == private + padded(100_000)
    by_name = {buffer.name: buffer for buffer in second.buffers.all}
    assert by_name["scratch/relu.0/workspace0/run/3"].offset == private
    assert by_name["scratch/relu.0/workspace0/run/8"].offset == private


def test_an_op_that_is_refused_by_its_lowering_is_refused_with_the_models_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(recorder: Recorder, args: tuple, kwargs: Mapping, outs: tuple[View, ...]) -> None:
        raise UnsupportedOpError("lowering relu", found="rank 2", required="rank 1", hint="flatten it")

    monkeypatch.setitem(LOWERINGS, "aten.relu.default", refuse)
    call = lambda m, x: {"y": torch.relu(x)}  # noqa: E731
    with pytest.raises(UnsupportedOpError) as refused:
        record(call)
    assert refused.value.found == f"rank 2, at {__file__}:{call.__code__.co_firstlineno}"
