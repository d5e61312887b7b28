"""Mistakes in a user's model or call: told with entry, bucket and the model's line, before anything is written."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from heliograph.capture import CaptureSpec, EntrySpec, TensorSpec, capture
from heliograph.capture.recording import Recording
from heliograph.capture.walk import told_running
from heliograph.core.slices import SliceWriter
from heliograph.errors import CaptureError, DeviceError, StorageError, UsageError

Call = Callable[..., Mapping[str, Tensor]]


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIOGRAPH_HOME", str(tmp_path_factory.mktemp("home")))


def spec_of(call: Call = lambda m, x: {"y": m(x)}, width: int = 8) -> CaptureSpec:
    entry = EntrySpec("run", ({"rows": 1}, {"rows": 3}), {"x": TensorSpec(("rows", width), "f32")}, call)
    return CaptureSpec("test", (entry,))


WRONG: dict[str, tuple[Call, type[Exception]]] = {
    "shape": (lambda m, x: {"y": m(x @ torch.zeros(7, 8))}, RuntimeError),
    "attribute": (lambda m, x: {"y": m.missing(x)}, AttributeError),
    "name of the input": (lambda m: {"y": m}, TypeError),
    "in one bucket": (lambda m, x: {"y": m(x.view(1, 8))}, RuntimeError),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_the_model_raises_is_told_with_bucket_line_and_cause(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    call, cause = WRONG[name]
    with pytest.raises(CaptureError) as refused:
        capture(nn.Linear(8, 4), spec_of(call), cores=tmp_path / "cores")
    assert ("run/3" if name == "in one bucket" else "run/1") in refused.value.doing
    assert f"{__file__}:{call.__code__.co_firstlineno}" in refused.value.found
    assert isinstance(refused.value.__cause__, cause)
    assert str(refused.value.__cause__) in refused.value.found
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert not (tmp_path / "cores").exists()


@pytest.mark.parametrize("wrong", [lambda entry, bucket, seed: 1 / 0, lambda entry, bucket: None])
def test_what_the_examples_raise_is_told_with_bucket_and_line(wrong: Callable[..., None], tmp_path: Path) -> None:
    with pytest.raises(CaptureError) as refused:
        capture(nn.Linear(8, 4), replace(spec_of(), examples=wrong), cores=tmp_path / "cores")
    assert "run/1" in refused.value.doing
    assert f"{__file__}:{wrong.__code__.co_firstlineno}" in refused.value.found


def test_examples_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        capture(nn.Linear(8, 4), replace(spec_of(), examples=lambda *_: b""), cores=tmp_path / "cores")


def test_the_pool_tells_of_its_memory_itself() -> None:
    entry = spec_of().entries[0]
    with pytest.raises(torch.OutOfMemoryError), told_running(entry, {"rows": 1}):
        raise torch.OutOfMemoryError("no more")


@pytest.mark.parametrize(
    "model", [lambda x: x, torch.jit.script(nn.Linear(8, 4)), nn.Sequential(torch.jit.script(nn.Linear(8, 4)))]
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_is_no_module_of_python_is_refused(model: object, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        capture(model, spec_of(), cores=tmp_path / "cores")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"device": "gpu"}, UsageError),
        ({"device": "cuda"}, CaptureError),  # this PyTorch is built for none
        ({"cap": "64MiB"}, UsageError),
        ({"cap": 0}, UsageError),
        ({"name": "../x"}, UsageError),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused_before_the_model_runs(
    arguments: dict, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    called: list[Tensor] = []

    def call(m: nn.Module, x: Tensor) -> dict[str, Tensor]:
        called.append(x)
        return {"y": m(x)}

    with pytest.raises(error):
        capture(nn.Linear(8, 4), spec_of(call), cores=tmp_path / "cores", **arguments)
    assert called == []


def test_the_folder_of_cores_may_be_text(tmp_path: Path) -> None:
    core = capture(nn.Linear(8, 4), spec_of(), cores=str(tmp_path / "cores"), name="own")
    assert core == tmp_path / "cores" / "own"


# ---- errors while cleaning up after another ------------------------------------------------------------------------
def full(writer: SliceWriter, data: memoryview) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_told_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = 1 << 18  # more weights than are read at a time
    monkeypatch.setattr(SliceWriter, "append", full)
    with pytest.raises(StorageError) as refused:
        capture(nn.Linear(wide, 8), spec_of(width=wide), cores=tmp_path / "cores")
    assert "ENOSPC" in refused.value.found
    assert not hasattr(refused.value, "__notes__")
    assert not (tmp_path / "cores").exists()
    monkeypatch.undo()
    capture(nn.Linear(8, 4), spec_of(), cores=tmp_path / "cores")


def test_an_error_while_cleaning_up_replaces_no_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = Recording.release

    def failing(recording: Recording) -> None:
        release(recording)
        raise DeviceError("giving memory back", found="a fault", required="none", hint="none")

    monkeypatch.setattr(Recording, "release", failing)
    with pytest.raises(DeviceError):
        capture(nn.Linear(8, 4), spec_of(), cores=tmp_path / "cores")
    monkeypatch.setattr(SliceWriter, "append", full)
    with pytest.raises(StorageError) as refused:
        capture(nn.Linear(8, 4), spec_of(), cores=tmp_path / "cores")
    assert "giving memory back" in refused.value.__notes__[0]
