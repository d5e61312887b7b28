"""A capture that fails leaves nothing: no memory, no file; and the same process can try again, with the same bytes."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_models import Mlp, digest, mlp, mlp_spec
from torch import Tensor, nn

from heliograph.capture import CaptureSpec, EntrySpec, TensorSpec, capture, checker, record
from heliograph.core.format import region_base
from heliograph.core.policy import Policy
from heliograph.core.verify import verify
from heliograph.device.host import open_host
from heliograph.errors import (
    AddressMovedError,
    AddressTakenError,
    CaptureError,
    CheckerError,
    OutOfMemoryError,
    UnsupportedOpError,
    ValueReadError,
)
from heliograph.runtime.load import load

LIMIT = 7 << 20  # of a device


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIOGRAPH_HOME", str(tmp_path_factory.mktemp("home")))


def spec_of(call: Callable[..., Mapping[str, Tensor]], rows: tuple[int, ...] = (1, 2, 3)) -> CaptureSpec:
    entry = EntrySpec("run", tuple({"rows": n} for n in rows), {"x": TensorSpec(("rows", 8), "f32")}, call)
    return CaptureSpec("test", (entry,))


def left_in(cores: Path) -> list[str]:
    return sorted(str(path.relative_to(cores)) for path in cores.rglob("*") if path.is_file())


@pytest.fixture
def slot_is_free() -> Iterator[None]:
    """After the test every region of slot 0 can be reserved."""
    yield
    device = open_host(workers=1)
    for role in ("weights", "io", "scratch", "constants", "persistent", "state"):
        device.reserve(region_base(0, role), 4096).close()
    device.close()


def test_the_third_bucket_fails_and_the_retry_gives_the_bytes_of_a_clean_run(
    tmp_path: Path, slot_is_free: None
) -> None:
    class Broken(Mlp):
        broken = True

        def forward(self, x: Tensor) -> Tensor:
            if self.broken and x.shape[0] == 8:
                raise RuntimeError("the third bucket")
            return super().forward(x)

    torch.manual_seed(11)
    model = Broken().eval()
    clean = capture(mlp(), mlp_spec(), cores=tmp_path / "clean")
    with pytest.raises(CaptureError, match="the third bucket"):
        capture(model, mlp_spec(), cores=tmp_path / "cores")
    assert left_in(tmp_path / "cores") == []
    model.broken = False
    assert digest(capture(model, mlp_spec(), cores=tmp_path / "cores")) == digest(clean)


def test_a_bucket_that_fails_under_capture_gives_everything_back(slot_is_free: None) -> None:
    runs: list[int] = []

    def call(m: nn.Module, x: Tensor) -> dict[str, Tensor]:
        runs.append(x.shape[0])
        if len(runs) == 6:
            raise RuntimeError("while the stream is capturing")
        return {"y": m(x)}

    device = open_host(workers=1)
    with pytest.raises(CaptureError, match="capturing"):
        record(nn.Linear(8, 4), spec_of(call), device=device, retain="executable")
    counters = device.counters()
    assert (counters["bytes_mapped"], counters["reservations_live"], counters["executables_live"]) == (0, 0, 0)
    record(nn.Linear(8, 4), spec_of(call), device=device).release()
    device.close()


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda m, x: {"y": torch.erfinv(m(x))}, UnsupportedOpError),
        (lambda m, x: {"y": m(x) * x.sum().item()}, ValueReadError),
    ],
)
def test_a_refused_model_leaves_no_file_and_keeps_its_parameters(
    wrong: Callable[..., Mapping[str, Tensor]], error: type[Exception], tmp_path: Path, slot_is_free: None
) -> None:
    model = nn.Linear(8, 4)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    with pytest.raises(error):
        capture(model, spec_of(wrong), cores=tmp_path / "cores", consume=True)
    assert left_in(tmp_path / "cores") == []
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
    capture(model, spec_of(lambda m, x: {"y": m(x)}, rows=(1,)), cores=tmp_path / "cores")


@pytest.mark.parametrize(("limit", "fits"), [(3 << 20, False), (8 << 20, True)])
def test_a_model_that_does_not_fit_the_device_is_refused(
    limit: int, fits: bool, tmp_path: Path, slot_is_free: None
) -> None:
    model, spec = nn.Linear(8, 1 << 17), spec_of(lambda m, x: {"y": m(x)[:, :4].clone()}, rows=(1,))
    if fits:
        capture(model, spec, cores=tmp_path / "cores", memory_limit=limit)
    else:
        with pytest.raises(OutOfMemoryError):
            capture(model, spec, cores=tmp_path / "cores", memory_limit=limit)
        assert left_in(tmp_path / "cores") == []


def test_executables_that_do_not_fit_are_refused_and_templates_of_the_same_model_are_not(slot_is_free: None) -> None:
    spec = spec_of(lambda m, x: {"y": m(x)}, rows=tuple(range(1, 12)))
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(12)])
    device = open_host(workers=1)
    with record(model, spec, device=device, retain="executable") as recording:
        mapped = recording.arena.mapped_bytes
        needed = sum(each.graph.costs.device_bytes + each.graph.costs.host_bytes for each in recording.graphs)
    device.close()
    tight = open_host(workers=1, memory_limit=mapped + needed // 2)
    with pytest.raises(OutOfMemoryError):
        record(model, spec, device=tight, retain="executable")
    assert tight.counters()["bytes_mapped"] == tight.counters()["executables_live"] == 0
    record(model, spec, device=tight, retain="template").release()
    tight.close()


def test_a_taken_address_is_refused_and_named(tmp_path: Path) -> None:
    spec = spec_of(lambda m, x: {"y": m(x)}, rows=(1,))
    other = open_host(workers=1)
    taken = other.reserve(region_base(0, "scratch"), 1 << 20)
    with pytest.raises(AddressTakenError):
        capture(nn.Linear(8, 4), spec, cores=tmp_path / "cores")
    assert left_in(tmp_path / "cores") == []
    taken.close()
    capture(nn.Linear(8, 4), spec, cores=tmp_path / "cores")
    other.close()


def reading_junk(m: nn.Module, x: Tensor) -> dict[str, Tensor]:
    return {"y": m(x) + torch.empty(x.shape[0], 4)}


def test_memory_that_is_read_and_never_written_is_kept_and_recorded(tmp_path: Path) -> None:
    core = capture(nn.Linear(8, 4), spec_of(reading_junk), cores=tmp_path / "cores")
    regions = {region["role"]: region for region in json.loads((core / "core.json").read_text())["regions"]}
    assert regions["scratch"]["initial"]
    (finding, *_) = json.loads((core / "provenance.json").read_text())["findings"]
    assert finding.startswith("scratch/add.0/in1/run/")
    with verify(core, Policy.local()) as verified, load(verified, workers=1):
        pass


def test_memory_that_is_read_after_another_graph_wrote_it_stops_the_export(tmp_path: Path, slot_is_free: None) -> None:
    reading = spec_of(reading_junk, rows=(2,))
    zeroed = spec_of(lambda m, x: {"y": m(x) + torch.zeros(x.shape[0], 4)}, rows=(2,))
    writing = EntrySpec("write", ({"rows": 2},), reading.entries[0].inputs, lambda m, x: {"y": torch.relu(m(x))})
    for spec, right in ((reading, False), (zeroed, True)):
        both = replace(spec, entries=(*spec.entries, writing))
        if right:
            capture(nn.Linear(8, 4), both, cores=tmp_path / "cores")
        else:
            with pytest.raises(CheckerError) as refused:
                capture(nn.Linear(8, 4), both, cores=tmp_path / "cores")
            assert "run/2 y" in refused.value.found
            assert "scratch/add.0/in1/run/2" in refused.value.found
            assert left_in(tmp_path / "cores") == []


def test_a_nan_in_an_output_stops_the_export(tmp_path: Path) -> None:
    model = nn.Linear(8, 4)
    with pytest.raises(CheckerError) as refused:
        capture(model, spec_of(lambda m, x: {"y": m(x) * float("nan")}, rows=(2,)), cores=tmp_path / "cores")
    assert "NaN" in refused.value.found
    assert left_in(tmp_path / "cores") == []


def test_a_checker_that_dies_stops_the_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*arguments: object, **options: object) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess([], -signal.SIGKILL, b"", b"")

    monkeypatch.setattr(checker.subprocess, "run", die)
    with pytest.raises(CheckerError):
        capture(nn.Linear(8, 4), spec_of(lambda m, x: {"y": m(x)}, rows=(1,)), cores=tmp_path / "cores")
    assert left_in(tmp_path / "cores") == []


def test_a_checker_ends_with_the_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getpid", lambda: 1)
    with pytest.raises(CheckerError) as refused:
        capture(nn.Linear(8, 4), spec_of(lambda m, x: {"y": m(x)}, rows=(1,)), cores=tmp_path / "cores")
    assert "exit status 1" in refused.value.found
    assert left_in(tmp_path / "cores") == []


def test_device_memory_is_given_back_before_the_checker_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that fills more than half of its device: recording and checker never hold it at the same time."""
    free: list[bool] = []
    run = checker.Checking.run

    def watched(self: checker.Checking, *arguments: object) -> object:
        device = open_host(workers=1)
        device.reserve(region_base(0, "weights"), 4096).close()
        device.close()
        free.append(True)
        limits.append(self.memory_limit)
        return run(self, *arguments)

    limits: list[int] = []
    monkeypatch.setattr(checker.Checking, "run", watched)
    model, spec = nn.Linear(8, 1 << 17), spec_of(lambda m, x: {"y": m(x)[:, :4].clone()}, rows=(1,))
    core = capture(model, spec, cores=tmp_path, memory_limit=LIMIT)
    assert free == [True, True]
    assert limits == [LIMIT, LIMIT]
    costs = {each["name"]: each["value"] for each in json.loads((core / "provenance.json").read_text())["costs"]}
    assert LIMIT // 2 < int(costs["mapped_bytes"]) < LIMIT
    assert LIMIT // 2 < int(costs["checker_peak_device_bytes"]) < LIMIT


def test_tensors_that_the_model_kept_are_gone_when_the_capture_is_over(slot_is_free: None) -> None:
    model = nn.Linear(8, 4)
    model.last = "nothing"

    def keeping(m: nn.Module, x: Tensor) -> dict[str, Tensor]:
        m.last = m.other = m(x)
        return {"y": m.last}

    device = open_host(workers=1)
    record(model, spec_of(keeping), device=device).release()
    device.close()
    assert model.last == "nothing"
    assert not hasattr(model, "other")


def test_a_model_that_changes_from_call_to_call_is_refused_and_everything_given_back(slot_is_free: None) -> None:
    calls: list[int] = []

    def changing(m: nn.Module, x: Tensor) -> dict[str, Tensor]:
        calls.append(0)
        return {"y": m(x) * len(calls)}

    device, model = open_host(workers=1), nn.Linear(8, 4)
    with pytest.raises(AddressMovedError) as refused:
        record(model, spec_of(changing), device=device)
    assert "run/1" in refused.value.found
    assert device.counters()["bytes_mapped"] == 0
    record(model, spec_of(lambda m, x: {"y": m(x) * 2}), device=device).release()
    device.close()
