"""Commands on a CUDA core: looked at anywhere, run where a driver is. The driver is the fake one, or none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from test_main import heliograph

import independent_reader
from as_cuda import as_cuda
from fake_cuda.control import FakeCuda
from heliograph.cli.capture import server_command
from heliograph.cli.group import EXIT_CODES
from heliograph.core.policy import Policy
from heliograph.core.sign import development_key
from heliograph.core.verify import verify
from heliograph.errors import DeviceError
from tiny_cuda_core import tiny_cuda_core

DEVICE_ERROR = next(code for kind, code in EXIT_CODES if kind is DeviceError)


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Path:
    return replace(tiny_cuda_core(text=True), key=development_key(home)).write(tmp_path_factory.mktemp("cuda"))


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory, smollm2_core: Path, home: Path) -> Path:
    with verify(smollm2_core, Policy.local(home)) as verified:
        parts = replace(as_cuda(verified), key=development_key(home), name="smollm2-cuda")
    return parts.write(tmp_path_factory.mktemp("cuda-model"))


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIOGRAPH_LIBCUDA", "/nowhere/libcuda.so.1")


def test_inspect_says_what_the_independent_reader_says(core: Path, home: Path, fake_cuda: FakeCuda) -> None:
    ours = json.loads(heliograph("inspect", core, "--json").stdout)
    fits = ours.pop("fits")
    assert (fits["ok"], fits["reason"]) == (True, "")
    assert fits["units"] > 1000
    assert ours == independent_reader.read(core, [development_key(home).public_bytes])
    assert ours["libraries"] == {"libcublasLt.so.13": 3}


def test_inspect_lists_the_library_of_each_module_and_functions_per_library(core: Path, fake_cuda: FakeCuda) -> None:
    shown = heliograph("inspect", core).stdout
    for part in ("cuda sm_90", "libcublasLt.so.13", "3 of libcublasLt.so.13", "fits this machine", "add (2)"):
        assert part in shown


def test_without_a_driver_a_core_can_be_looked_at_and_verified(core: Path, no_driver: None) -> None:
    assert "does not fit here" in heliograph("inspect", core).stdout
    assert "libcuda" in json.loads(heliograph("inspect", core, "--json").stdout)["fits"]["reason"]
    assert json.loads(heliograph("verify", core, "--json").stdout)["ok"] is True


def test_without_a_driver_running_a_core_is_one_clear_error(core: Path, no_driver: None) -> None:
    ended = heliograph("replay", core, check=DEVICE_ERROR)
    assert "DriverError" in ended.stderr
    assert "/nowhere/libcuda.so.1" in ended.stderr


def test_replay_runs_every_graph(core: Path, fake_cuda: FakeCuda) -> None:
    """R25"""
    said = json.loads(heliograph("replay", core, "--times", "2", "--device", "1", "--json").stdout)
    assert [(graph["passed"], graph["of"]) for graph in said["graphs"]] == [(2, 2), (2, 2)]


def test_a_device_that_is_not_there_is_an_error(core: Path, fake_cuda: FakeCuda) -> None:
    assert "DriverError" in heliograph("replay", core, "--device", "2", check=DEVICE_ERROR).stderr


def test_doctor_judges_the_device_that_is_asked_for(core: Path, fake_cuda: FakeCuda) -> None:
    """There are two."""
    for device, reason in ((1, ""), (2, "device 2")):
        fit = json.loads(heliograph("doctor", core, "--device", str(device), "--json", check=int(reason != "")).stdout)[
            "core"
        ]
        assert fit["ok"] == (not reason)
        assert reason in fit["reason"]


def test_a_capture_hands_its_device_to_the_server_that_it_becomes() -> None:
    command = server_command(Path("cores/it"), 1, ["--port", "0"], as_json=True)
    assert command[-7:] == ["serve", "cores/it", "--device", "1", "--port", "0", "--json"]


def test_generate_answers_as_on_the_host(language_model: Path, smollm2_core: Path, fake_cuda: FakeCuda) -> None:
    """R22"""
    asked = ("The capital of France is", "--max-tokens", "5", "--raw", "--json")
    host = json.loads(heliograph("generate", smollm2_core, *asked).stdout)
    cuda = json.loads(heliograph("generate", language_model, *asked).stdout)
    assert cuda["tokens"] == host["tokens"]
    assert cuda["torch"] is False
