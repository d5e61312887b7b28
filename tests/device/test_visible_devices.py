"""Which devices a process sees is the driver's: CUDA_VISIBLE_DEVICES by number and by UUID (make test-gpu)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu
OPEN = "from heliograph.device.cuda import open_cuda; d = open_cuda(); print(d.arch, d.processors)"


def opened(visible: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": visible}
    return subprocess.run([sys.executable, "-c", OPEN], env=environment, capture_output=True, text=True, timeout=60)


def uuid() -> str:
    command = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]


def test_a_device_that_is_visible_is_opened() -> None:
    by_number, by_uuid = opened("0"), opened(uuid())
    assert (by_number.returncode, by_number.stderr) == (0, "")
    assert by_uuid.stdout == by_number.stdout != ""


@pytest.mark.parametrize("visible", ["", "GPU-00000000-0000-0000-0000-000000000000"])
def test_where_none_is_visible_that_is_said(visible: str) -> None:
    done = opened(visible)
    assert done.returncode != 0
    assert "DriverError" in done.stderr
    assert "CUDA_ERROR_NO_DEVICE" in done.stderr
