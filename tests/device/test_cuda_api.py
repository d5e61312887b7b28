"""The table of CUDA entry points: found lazily, each with its version; failures named and explained."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fake_cuda.build import compiler, cuda_headers
from fake_cuda.control import CODES, FakeCuda
from heliograph._native import CudaDevice
from heliograph.errors import DeviceError, DeviceFaultError, DriverError, ModuleError, OutOfMemoryError
from rigs import Rig

TABLE = (Path(__file__).parents[2] / "native" / "cuda_api.h").read_text()
ENTRIES = {name: int(version) for name, version in re.findall(r"X\((cu\w+), (\d+)\)", TABLE)}


def test_package_imports_without_a_driver_and_opens_none() -> None:
    script = "import heliograph._native, heliograph.device.graph\nprint('cuda' in open('/proc/self/maps').read())"
    environment = {**os.environ, "HELIOGRAPH_LIBCUDA": "/nowhere/libcuda.so.1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_missing_library_is_refused_by_name(fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIOGRAPH_LIBCUDA", "/nowhere/libcuda.so.1")
    with pytest.raises(DriverError) as refused:
        CudaDevice()
    assert "/nowhere/libcuda.so.1" in refused.value.doing
    monkeypatch.setenv("HELIOGRAPH_LIBCUDA", str(fake_cuda.path))
    assert CudaDevice().kind == "cuda"


def test_library_that_is_no_driver_is_refused(fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIOGRAPH_LIBCUDA", "libm.so.6")
    with pytest.raises(DriverError) as refused:
        CudaDevice()
    assert "cuGetProcAddress_v2" in refused.value.found


def test_table_has_entries() -> None:
    assert {"cuInit", "cuGraphExecGetFlags", "cuFuncGetParamInfo", "cuStreamGetCaptureInfo"} <= ENTRIES.keys()


@pytest.mark.parametrize("entry", ENTRIES)
def test_missing_entry_point_is_refused_by_name(fake_cuda: FakeCuda, entry: str) -> None:
    fake_cuda.hide(entry)
    with pytest.raises(DriverError) as refused:
        CudaDevice()
    assert f"no entry point {entry}" in refused.value.found
    fake_cuda.reset()
    assert CudaDevice().alive


def test_driver_that_is_too_old_is_refused_with_the_version_needed(fake_cuda: FakeCuda) -> None:
    fake_cuda.driver_version(12030)
    with pytest.raises(DriverError) as refused:
        CudaDevice()
    assert "cuModuleGetFunctionCount" in refused.value.required
    assert "12.4" in refused.value.required
    fake_cuda.driver_version(12040)
    assert CudaDevice().alive


def test_entry_points_have_the_signature_of_the_version_asked_for(tmp_path: Path) -> None:
    """The compiler compares our types with the header's own list of signatures by version."""
    lines = ["#include <cuda.h>", "#include <cudaTypedefs.h>", "#include <type_traits>"]
    lines += [f"static_assert(std::is_same_v<decltype(&{n}), PFN_{n}_v{v}>);" for n, v in ENTRIES.items()]
    # cuda.h gives names their newest version by macros, which must not reach the names of the list.
    source = tmp_path / "signatures.cpp"
    source.write_text("\n".join(line.replace("&cu", "&::cu") for line in lines))
    command = [*compiler(), "-std=c++20", "-fsyntax-only", "-isystem", str(cuda_headers()), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


TYPES = {
    "CUDA_ERROR_OUT_OF_MEMORY": OutOfMemoryError,
    "CUDA_ERROR_ILLEGAL_ADDRESS": DeviceFaultError,
    "CUDA_ERROR_LAUNCH_FAILED": DeviceFaultError,
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": DeviceFaultError,
    "CUDA_ERROR_MISALIGNED_ADDRESS": DeviceFaultError,
    "CUDA_ERROR_ASSERT": DeviceFaultError,
    "CUDA_ERROR_NO_BINARY_FOR_GPU": ModuleError,
    "CUDA_ERROR_INVALID_IMAGE": ModuleError,
    "CUDA_ERROR_INVALID_VALUE": DriverError,
    "CUDA_ERROR_STREAM_CAPTURE_UNJOINED": DriverError,
    "CUDA_ERROR_UNKNOWN": DriverError,
}


@pytest.mark.parametrize("code", CODES)
def test_failure_carries_its_symbolic_name_and_an_explanation(fake_cuda: FakeCuda, cuda: Rig, code: str) -> None:
    fake_cuda.fail("cuStreamQuery", code)
    if code == "CUDA_ERROR_NOT_READY":  # not a failure here: the stream still has work
        assert not cuda.stream.query()
        return
    with pytest.raises(DeviceError) as failed:
        cuda.stream.query()
    assert type(failed.value) is TYPES.get(code, type(failed.value))
    call, name, explanation = failed.value.found.split(": ", 2)
    assert (call, name) == ("cuStreamQuery", f"{code} ({CODES[code]})")
    assert len(explanation) > 10
    assert failed.value.hint


def test_codes_that_users_meet_are_explained_in_our_words(fake_cuda: FakeCuda, cuda: Rig) -> None:
    source = (Path(__file__).parents[2] / "native" / "cuda_api.cpp").read_text()
    known = set(re.findall(r"^    \{(CUDA_ERROR_\w+),", source, re.MULTILINE))
    assert len(known) > 30
    assert known <= CODES.keys()
    for code in ("CUDA_ERROR_INVALID_CLUSTER_SIZE", "CUDA_ERROR_NOT_PERMITTED", "CUDA_ERROR_UNSUPPORTED_LIMIT"):
        fake_cuda.fail("cuStreamQuery", code)
        with pytest.raises(DriverError) as failed:
            cuda.stream.query()
        assert "the fake driver's sentence" not in failed.value.found


def test_code_without_a_name_is_still_told(fake_cuda: FakeCuda, cuda: Rig) -> None:
    fake_cuda.fail_with_number("cuStreamQuery", 7777)
    with pytest.raises(DriverError) as failed:
        cuda.stream.query()
    assert "7777" in failed.value.found


def test_driver_without_a_device_is_refused(fake_cuda: FakeCuda) -> None:
    fake_cuda.fail("cuInit", "CUDA_ERROR_NO_DEVICE")
    with pytest.raises(DriverError) as refused:
        CudaDevice()
    assert "CUDA_ERROR_NO_DEVICE" in refused.value.found
    assert "nvidia-smi" in refused.value.hint
    assert CudaDevice().alive


@pytest.mark.parametrize("index", [2, -1])
def test_device_that_does_not_exist_is_refused(fake_cuda: FakeCuda, index: int) -> None:
    with pytest.raises(DriverError) as refused:
        CudaDevice(index)
    assert "2 devices" in refused.value.found
    assert CudaDevice(1).arch == "sm_90"


def test_second_driver_library_in_a_process_is_refused(cuda: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIOGRAPH_LIBCUDA", "libcuda-of-someone-else.so")
    with pytest.raises(DriverError) as refused:
        CudaDevice()
    assert "still open" in refused.value.found
