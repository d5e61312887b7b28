"""A capture command runs with fixed variables; a recording runs with fixed settings, and puts them back."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest
import torch

from heliograph.capture.environment import FIXED
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
