"""The preparing process becomes the serving program: same id, same results, nothing left over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from heliograph.core.sign import SigningKey
from heliograph.errors import StorageError
from heliograph.runtime.handover import close_on_exec, handover
from study import Script, Study, make


@pytest.fixture(scope="module", params=[64 << 20, 64 << 30], ids=["cap 64 MiB", "cap 64 GiB"])
def capped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, fresh_key: SigningKey) -> Path:
    """80 MiB of weights, in two files or in one."""
    study = Study(rows=(1, 2), depth=80 * 1024, cap=request.param)
    core = make(tmp_path_factory.mktemp("capped"), study, fresh_key, name="capped")
    assert len(json.loads((core / "core.json").read_text())["weights"]["slices"]) == (2 if study.cap < 80 << 20 else 1)
    return core


def test_another_process_replays_after_the_preparing_one_has_exited(script: Script, capped: Path) -> None:
    assert script("load_once.py", core=capped)["passed"] == [True, True]


def test_the_preparing_process_becomes_the_serving_program(script: Script, capped: Path) -> None:
    result: dict[str, Any] = script("hand_over.py", "clean", core=capped)
    assert result["same process"]
    assert result["passed"] == [True, True]
    assert not result["leaked"]
    assert result["listening"]


def test_memory_after_the_handover_is_that_of_a_fresh_process(script: Script) -> None:
    result: dict[str, Any] = script("hand_over.py", "clean")
    assert result["resident before"] > 256 << 20
    assert result["resident after"] < 128 << 20


def test_a_program_that_is_still_alive_is_refused_and_goes_on(script: Script) -> None:
    result: dict[str, Any] = script("hand_over.py", "alive")
    assert "executables_live" in result["refused"]
    assert result["still passes"] is True


def test_a_program_that_cannot_be_executed_is_a_storage_error() -> None:
    with pytest.raises(StorageError) as caught:
        handover(["/nonexistent/program"])
    assert caught.value.hint


def test_only_the_descriptors_that_are_kept_are_inherited() -> None:
    script = (
        "import os, sys\n"
        "from heliograph.runtime.handover import close_on_exec\n"
        "one, two = os.open('/dev/null', 0), os.open('/dev/null', 0)\n"
        "os.set_inheritable(one, True)\n"
        "close_on_exec([two])\n"
        "print(os.get_inheritable(one), os.get_inheritable(two), os.get_inheritable(1))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "True"]


def test_a_descriptor_to_keep_must_be_open() -> None:
    closed = os.open("/dev/null", os.O_RDONLY)
    os.close(closed)
    with pytest.raises(OSError, match="Bad file descriptor"):
        close_on_exec([closed])
