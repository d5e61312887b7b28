"""From a model to a signed core and back: what PyTorch computes, the capturing process replays, and so does a load."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_models import mlp, mlp_spec, mlp_step
from torch import Tensor, nn

import heliograph.ops.references  # noqa: F401  registers the ops
from heliograph.capture import CaptureSpec, EntrySpec, Example, Recording, StateSpec, TensorSpec, capture, record
from heliograph.capture.draft import put_recording
from heliograph.capture.examples import raw_bytes
from heliograph.capture.spec import Shape
from heliograph.core.format import DEFAULT_CAP
from heliograph.core.policy import Policy
from heliograph.core.sign import DEVELOPMENT_KEY, development_key
from heliograph.core.verify import verify
from heliograph.core.write import DraftWriter
from heliograph.device.host import open_host
from heliograph.errors import CoreExistsError, FlagsError, GraphStateError, ReplayManifestError, UsageError
from heliograph.runtime.load import load

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A home of its own: the development key is made, and trusted, there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HELIOGRAPH_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory, home: None) -> Path:
    return capture(mlp(), mlp_spec(), cores=tmp_path_factory.mktemp("cores"))


def inputs(rows: int, seed: int) -> Tensor:
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(seed))


def floats(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.float32)


def test_a_recording_computes_what_pytorch_computes() -> None:
    model, total = mlp(), torch.zeros(4)
    with record(mlp(), mlp_spec(), device=open_host(workers=1), retain="executable") as recording, torch.no_grad():
        for seed, rows in enumerate([3, 1, 8, 8, 1, 3]):
            x = inputs(rows, seed)
            recording.write("step", {"rows": rows}, "x", raw_bytes(x))
            recording.run("step", rows=rows)
            expected = mlp_step(model, x, total)
            found = floats(recording.read("step", {"rows": rows}, "y")).view(rows, 4)
            torch.testing.assert_close(found, expected["y"], rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(floats(recording.read_state("total")), total, rtol=1e-5, atol=1e-4)


def test_a_loaded_core_computes_what_the_recording_computes_bit_for_bit(core: Path) -> None:
    order = [(rows, seed) for rows in (1, 3, 8) for seed in range(10)]
    random.Random(3).shuffle(order)
    with record(mlp(), mlp_spec(), device=open_host(workers=1), retain="executable") as recording:
        expected = [step(recording, rows, seed) for rows, seed in order]
    with verify(core, Policy.local()) as verified, load(verified, workers=2) as program:
        for (rows, seed), wanted in zip(order, expected, strict=True):
            program.write("step", {"rows": rows}, "x", raw_bytes(inputs(rows, seed)))
            program.run("step", rows=rows)
            with program.state("total") as total:
                assert (program.read("step", {"rows": rows}, "y"), bytes(total)) == wanted


def step(recording: Recording, rows: int, seed: int) -> tuple[bytes, bytes]:
    recording.write("step", {"rows": rows}, "x", raw_bytes(inputs(rows, seed)))
    recording.run("step", rows=rows)
    return recording.read("step", {"rows": rows}, "y"), recording.read_state("total")


def test_the_core_says_what_was_captured(core: Path) -> None:
    described = json.loads((core / "core.json").read_text())
    assert [graph["name"] for graph in described["graphs"]] == ["step/1", "step/3", "step/8"]
    tensors = {tensor["name"]: tensor for tensor in described["weights"]["tensors"]}
    assert tensors["second.weight"]["offset"] == tensors["third.weight"]["offset"]
    assert "calls" not in tensors
    roles = {buffer["name"]: buffer["role"] for buffer in described["buffers"]}
    assert roles["weights/calls"] == "persistent"
    assert roles["state/total"] == "state"
    assert [entry["name"] for entry in described["entries"]] == ["step"]
    families = {module["family"] for module in described["modules"]}
    assert len(families) == len(described["modules"])
    used = {function["module"] for function in described["functions"]}
    assert used == set(range(len(described["modules"])))


def test_the_record_counts_what_was_captured_and_what_it_cost(core: Path) -> None:
    described = json.loads((core / "core.json").read_text())
    made = json.loads((core / "provenance.json").read_text())
    costs = {item["name"]: int(item["value"]) for item in made["costs"]}
    assert costs["graphs"] == 3
    assert costs["nodes"] == sum(graph["nodes"] for graph in described["graphs"])
    assert costs["functions"] == len(described["functions"])
    assert costs["modules"] == len(described["modules"])
    assert costs["executables"] == 0
    assert {"record", "draft", "checker"} <= {phase["name"] for phase in made["phases"]}
    assert made["retain"] == "template"


def test_persistent_buffers_start_with_the_value_they_had(core: Path, tmp_path: Path) -> None:
    with verify(core, Policy.local()) as verified, load(verified, workers=1) as program:
        program.write("step", {"rows": 1}, "x", raw_bytes(inputs(1, 0)))
        outputs = []
        for _ in range(2):
            program.run("step", rows=1)
            outputs.append(floats(program.read("step", {"rows": 1}, "y")))
        torch.testing.assert_close(outputs[1], outputs[0] * 2)


def test_no_executable_is_made_for_templates_and_one_a_graph_for_executables() -> None:
    for retain, count in (("template", 0), ("executable", 3)):
        device = open_host(workers=1)
        with record(mlp(), mlp_spec(), device=device, retain=retain) as recording:
            assert device.counters()["executables_created"] == count
            if retain == "template":
                with pytest.raises(ReplayManifestError):
                    recording.run("step", rows=1)
        device.close()


def test_an_executable_with_other_flags_than_recorded_is_not_replayed() -> None:
    """R9: every graph is checked before the first launch of any."""
    device = open_host(workers=1)
    with record(mlp(), mlp_spec(), device=device) as recording:
        for number, recorded in enumerate(recording.graphs):
            recorded.graph.instantiate(flags=8 if number else 0)
        with pytest.raises(ReplayManifestError) as refused:
            recording.run("step", rows=1)
        assert "USE_NODE_PRIORITY (8)" in refused.value.found
        assert device.counters()["launches"] == 0
    device.close()


def test_a_released_recording_has_given_everything_back_and_cannot_be_used() -> None:
    device = open_host(workers=1)
    recording = record(mlp(), mlp_spec(), device=device, retain="executable")
    recording.release()
    recording.release()
    counters = device.counters()
    assert (counters["bytes_mapped"], counters["reservations_live"], counters["executables_live"]) == (0, 0, 0)
    with pytest.raises(GraphStateError):
        recording.run("step", rows=1)
    device.close()


@pytest.mark.parametrize("flags", [0, 1, 8, 9])
def test_flags_are_those_of_the_executable_and_of_the_core(flags: int, tmp_path: Path) -> None:
    spec = mlp_spec(rows=(1,))
    with (
        record(mlp(), spec, device=open_host(workers=1), retain="executable", flags=flags) as recording,
        DraftWriter(tmp_path / "cores") as writer,
    ):
        instance = recording.graphs[0].graph.instance
        assert instance is not None
        assert instance.executable.flags == flags
        assert put_recording(recording, writer, DEFAULT_CAP).core.graphs[0].flags == flags


def test_flags_that_are_not_supported_are_refused_by_name() -> None:
    device = open_host(workers=1)
    with pytest.raises(FlagsError) as refused:
        record(mlp(), mlp_spec(rows=(1,)), device=device, flags=2)
    assert "UPLOAD" in refused.value.found
    assert device.counters()["bytes_mapped"] == 0
    device.close()


def test_a_consumed_model_gives_its_memory_to_the_core(core: Path, tmp_path: Path) -> None:
    model = mlp()
    consumed = capture(model, mlp_spec(), cores=tmp_path, consume=True)
    assert sum(parameter.numel() for parameter in model.parameters()) == 0
    assert (consumed / "core.json").read_bytes() == (core / "core.json").read_bytes()


def test_two_slots_load_side_by_side(core: Path, tmp_path: Path) -> None:
    other = capture(mlp(), mlp_spec(slot=3), cores=tmp_path)
    results = []
    with (
        verify(core, Policy.local()) as first,
        verify(other, Policy.local()) as second,
        load(first, workers=1) as one,
        load(second, workers=1) as two,
    ):
        for program in (one, two):
            program.write("step", {"rows": 3}, "x", raw_bytes(inputs(3, 1)))
            program.run("step", rows=3)
            results.append(program.read("step", {"rows": 3}, "y"))
    assert results[0] == results[1]


def test_weights_are_cut_at_the_cap(tmp_path: Path) -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 300_000, generator=torch.Generator().manual_seed(1)))

    entry = EntrySpec(
        "row", ({"rows": 1},), {"x": TensorSpec(("rows", 4), "f32")}, lambda m, x: {"y": x @ m.weight[:, :64]}
    )
    core = capture(Wide(), CaptureSpec("wide", (entry,)), cores=tmp_path, cap=1 << 20)
    weights = json.loads((core / "core.json").read_text())["weights"]
    assert [part["size"] for part in weights["slices"]][:4] == [1 << 20] * 4
    with verify(core, Policy.local()) as verified, load(verified, workers=1):
        pass


def test_progress_is_told_from_the_first_run_to_the_signature(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    capture(mlp(), mlp_spec(rows=(1, 2)), cores=tmp_path, progress=lambda *what: told.append(what))
    names = [doing for doing, _, _ in told]
    assert names[:4] == ["running step/1", "running step/2", "capturing step/1", "capturing step/2"]
    assert names[-3:] == ["writing the draft", "checking the draft", "signing"]
    assert all(done <= total or not total for _, done, total in told)


def test_a_name_that_is_taken_is_refused_before_anything_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    told: list[str] = []
    with pytest.raises(CoreExistsError):
        capture(mlp(), mlp_spec(), cores=tmp_path, name="taken", progress=lambda doing, *_: told.append(doing))
    assert told == []
    assert capture(mlp(), mlp_spec(rows=(1,)), cores=tmp_path, name="free").name == "free"


def test_a_key_that_cannot_sign_is_refused_before_anything_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELIOGRAPH_HOME", str(tmp_path / "home"))
    development_key()
    (tmp_path / "home" / DEVELOPMENT_KEY).chmod(0o644)
    told: list[str] = []
    with pytest.raises(UsageError, match="mode 644"):
        capture(mlp(), mlp_spec(), cores=tmp_path / "cores", progress=lambda doing, done, total: told.append(doing))
    assert told == []
    assert not (tmp_path / "cores").exists()


def test_fields_and_buckets_are_looked_up_by_name() -> None:
    with record(mlp(), mlp_spec(rows=(1,)), device=open_host(workers=1)) as recording:
        wrong: list[Callable[[], object]] = [
            lambda: recording.read("other", {"rows": 1}, "y"),
            lambda: recording.read("step", {"rows": 2}, "y"),
            lambda: recording.read("step", {"rows": 1}, "z"),
            lambda: recording.write("step", {"rows": 1}, "x", b"short"),
            lambda: recording.read_state("none"),
            lambda: recording.write_state("total", b"short"),
        ]
        for call in wrong:
            with pytest.raises(UsageError):
                call()


def test_growing_state_is_captured_with_its_units_and_loaded_with_any_number(tmp_path: Path) -> None:
    core = capture(nn.Module(), attention_spec(), cores=tmp_path)
    described = json.loads((core / "core.json").read_text())
    region = next(region for region in described["regions"] if region["role"] == "state")
    assert region["grow"] == 2 * 2 * 2 * 4 * 2
    assert region["grow_at"] >= region["size"] > 0
    results = []
    for units in (5, 400):
        with verify(core, Policy.local()) as verified, load(verified, workers=1, units=units) as program:
            assert program.units == units
            for name, data in attention_inputs("step", {"tokens": 3}, 5).inputs.items():
                program.write("step", {"tokens": 3}, name, data)
            program.run("step", tokens=3)
            results.append(program.read("step", {"tokens": 3}, "y"))
    assert results[0] == results[1]


def attention_spec() -> CaptureSpec:
    """Attention over paged memory: two heads of four, blocks of two tokens, and a state that does not grow."""

    def step(
        m: nn.Module, x: Tensor, positions: Tensor, rows: Tensor, tables: Tensor, kv: Tensor, fixed: Tensor
    ) -> dict[str, Tensor]:
        heads = x.view(-1, 2, 4)
        torch.ops.heliograph.kv_store(heads, heads, kv, 0, tables, rows, positions)
        return {"y": torch.ops.heliograph.paged_attention(heads, kv, 0, tables, rows, positions, 0.5) + fixed}

    inputs = {
        "x": TensorSpec(("tokens", 8), "f32"),
        "positions": TensorSpec(("tokens",), "i32"),
        "rows": TensorSpec(("tokens",), "i32"),
        "tables": TensorSpec((1, 2), "i32"),
    }
    state = {"kv": StateSpec((1, 2, 2, 2, 4), "f16", grows=True), "fixed": StateSpec((1,), "f32")}
    entry = EntrySpec("step", ({"tokens": 1}, {"tokens": 3}), inputs, step)
    return CaptureSpec("attention", (entry,), state=state, units=5, examples=attention_inputs)


def attention_inputs(entry: str, bucket: Shape, seed: int) -> Example:
    """One sequence in two scattered blocks; the last token of a larger bucket is padding."""
    draw, tokens = random.Random(seed), bucket["tokens"]
    real = max(1, tokens - 1)
    values = {
        "x": array("f", (draw.uniform(-1, 1) for _ in range(8 * tokens))),
        "positions": array("i", [*range(real), *[-1] * (tokens - real)]),
        "rows": array("i", [0] * tokens),
        "tables": array("i", draw.sample(range(1, 5), 2)),
    }
    return Example({name: data.tobytes() for name, data in values.items()}, {"tokens": real})


def test_the_classifier_of_the_examples_is_replayed_without_torch(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "classifier.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "replayed without torch: True" in ended.stdout
