"""On a GPU (make test-gpu): a pool that grows in a capture, copies through pinned memory, images by the real CUPTI."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from heliograph._native import CudaDevice
from heliograph.core.format import region_base
from rigs import PTX, Rig

pytestmark = pytest.mark.gpu
MIB = 1 << 20
SPAN = 64 * MIB


def test_a_pool_grows_inside_a_capture(gpu: Rig) -> None:
    device = gpu.device
    assert isinstance(device, CudaDevice)
    arena = device.reserve(region_base(6, "scratch"), SPAN)
    pool = device.pool(arena, 0, SPAN, "scratch")
    signature = (ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
    alloc = ctypes.CFUNCTYPE(ctypes.c_void_p, *signature)(pool.alloc_address)
    free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *signature)(pool.free_address)
    gpu.stream.begin_capture()
    address = alloc(4 * MIB, 0, None)
    gpu.stream.memset(address, 0, 8)
    gpu.count(gpu.stream, address)
    template = gpu.stream.end_capture()
    assert (address, pool.error) == (arena.address, "")
    executable = template.instantiate(0)
    executable.launch(gpu.stream)
    gpu.stream.synchronize()
    free(address, 4 * MIB, 0, None)
    assert arena.read(0, 8) == (1).to_bytes(8, "little")  # freed, and still readable
    pool.close()
    arena.close()


def test_copies_through_pinned_memory_and_exportable_mappings(gpu: Rig) -> None:
    device = gpu.device
    assert isinstance(device, CudaDevice)
    memory = device.reserve(region_base(6, "weights"), SPAN)
    memory.map(0, 32 * MIB, exportable=True)
    data = bytes(range(256)) * (32 * MIB // 256)
    there, back = device.pinned(32 * MIB), device.pinned(32 * MIB)
    memoryview(there)[:] = data
    memory.write_async(0, there, 0, 32 * MIB, gpu.stream)
    memory.read_async(0, back, 0, 32 * MIB, gpu.stream)
    there.close()  # waits
    memory.close()  # likewise
    assert bytes(memoryview(back)) == data
    back.close()


IMAGES = """
import sys, torch
from heliograph._native import CudaDevice, CudaImages, SealedImage
images = CudaImages()
device = CudaDevice()
module = device.load_module(SealedImage("rig", open(sys.argv[1], "rb").read()))
for name in module.function_names():
    image = images.image(images.number(module.function(name)))
    assert image[:4] == b"\\x7fELF" and name.encode() in image, name
x = torch.ones(256, 256, device="cuda", dtype=torch.bfloat16)
(x @ x).sum().item()
print(*sorted({images.library(n) for n in range(images.count())}))
images.close()
"""


def test_the_real_cupti_hands_out_the_images_of_our_kernels_and_of_pytorchs_libraries() -> None:
    done = subprocess.run([sys.executable, "-c", IMAGES, str(PTX)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    libraries = [Path(name).name for name in done.stdout.split()]
    assert any(name.startswith("libcublas") for name in libraries), libraries
    assert any(name.startswith("libtorch_cuda") for name in libraries), libraries
