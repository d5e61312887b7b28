"""A capture command runs with fixed variables; a recording runs with fixed settings, and puts them back."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_models import mlp, mlp_spec

from heliograph.capture import again, export
from heliograph.capture.again import Again
from heliograph.capture.cuda import session
from heliograph.capture.environment import (
    FIXED,
    TRITON_CACHE,
    child_environment,
    private_triton_cache,
    recorded_environment,
    triton_overrides,
)
from heliograph.capture.provenance import Notes
from heliograph.capture.settings import fixed_settings

PROGRAM = """
import os, sys
before = "BEFORE" in os.environ
os.environ["BEFORE"] = "1"
from heliograph.capture.environment import start_in_fixed_environment
start_in_fixed_environment()
print(os.getpid(), before, "torch" in sys.modules, os.environ["PYTHONHASHSEED"], hash("a"), *sys.argv[1:])
"""


def run(**variables: str) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if name not in {*FIXED, "BEFORE"}}
    command = [sys.executable, "-c", PROGRAM, "two words"]
    with subprocess.Popen(command, env={**environment, **variables}, stdout=subprocess.PIPE, text=True) as process:
        output = process.communicate()[0]
        assert process.returncode == 0
        words = output.split()
        assert int(words[0]) == process.pid
    return words[1:]


def test_a_process_in_another_environment_starts_anew_once_and_keeps_its_id_and_arguments() -> None:
    first, second = run(PYTHONHASHSEED="77"), run(TZ="Asia/Tokyo")
    assert first[:3] == ["True", "False", "0"]
    assert first == second
    assert first[-2:] == ["two", "words"]


def test_a_process_in_the_fixed_environment_goes_on() -> None:
    assert run(**FIXED)[0] == "False"


def test_what_changes_tritons_kernels_is_dropped_and_where_its_tools_lie_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    overrides = ["TRITON_ALWAYS_COMPILE", "TRITON_CACHE_MANAGER", "TRITON_KERNEL_OVERRIDE"]
    for name in (*overrides, "TRITON_PTXAS_PATH"):
        monkeypatch.setenv(name, "1")
    assert triton_overrides(os.environ) == overrides
    assert not child_environment().keys() & {*overrides}
    assert {"TRITON_PTXAS_PATH", "TRITON_DISABLE_LINE_INFO"} <= child_environment().keys()
    assert recorded_environment()["TRITON_PTXAS_PATH"] == "1"
    for name in overrides:
        monkeypatch.delenv(name)
    assert run(**FIXED, TRITON_KERNEL_OVERRIDE="1")[0] == "True"
    assert run(**FIXED, TRITON_PTXAS_PATH="1")[0] == "False"


@pytest.mark.parametrize("before", [None, "of/the/user"])
def test_tritons_cache_is_empty_at_first_and_gone_afterwards(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if before is None:
        monkeypatch.delenv(TRITON_CACHE, raising=False)
    else:
        monkeypatch.setenv(TRITON_CACHE, before)
    folders = []
    for _ in range(2):
        with private_triton_cache():
            folders.append(Path(os.environ[TRITON_CACHE]))
            assert list(folders[-1].iterdir()) == []
            assert folders[-1].stat().st_mode & 0o777 == 0o700
            (folders[-1] / "kernel").write_bytes(b"")
        assert os.environ.get(TRITON_CACHE) == before
    assert not any(folder.exists() for folder in folders)
    assert len({*folders}) == 2


def test_both_captures_of_an_exact_census_compile_into_the_same_private_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def second(*arguments: object) -> None:
        seen.append(child_environment()[TRITON_CACHE])

    def first(*arguments: object) -> None:
        seen.append(os.environ[TRITON_CACHE])
        raise KeyError("the device")

    monkeypatch.setenv(TRITON_CACHE, "of/the/user")
    monkeypatch.setattr(again, "second_capture", second)
    monkeypatch.setattr(session, "CudaSession", first)
    with pytest.raises(KeyError, match="the device"):
        export._record_cuda(
            mlp(), mlp_spec(), Again("none:none"), 0, "template", 0, Notes("template"), lambda *told: None
        )
    assert len(seen) == 2
    assert len({*seen, "of/the/user"}) == 2


def test_settings_hold_inside_and_are_put_back_whatever_happens() -> None:
    def state() -> tuple[bool, ...]:
        fused, library = torch.backends.mha.get_fastpath_enabled(), torch._C._get_mkldnn_enabled()
        return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), fused, library, gc.isenabled()

    def fail() -> None:
        with torch.autocast("cpu"), fixed_settings():
            assert state() == (False, False, False, False, False)
            assert not torch.is_inference_mode_enabled()
            raise KeyError("inside")

    before = state()
    with pytest.raises(KeyError):
        fail()
    assert state() == before
