"""What the CUDA device tells of itself, its context, addresses and the variables of modules."""

from __future__ import annotations

import pytest

from fake_cuda.control import FakeCuda
from heliograph._native import CudaDevice, SealedImage
from heliograph.core.format import CUDA_LIMITS
from heliograph.device.host import kernel_image, open_host
from heliograph.errors import DriverError, ModuleError, UsageError
from rigs import Rig

IMAGE = b"fake-image sm_90\nreads 0:8\nglobal table 64 7\nglobal counter 4 0\n"


def device(rig: Rig) -> CudaDevice:
    assert isinstance(rig.device, CudaDevice)
    return rig.device


def test_device_tells_what_a_target_says(cuda: Rig) -> None:
    of = device(cuda)
    assert (of.name, of.index, of.processors, of.shared_optin, of.driver_version) == (
        "Fake H200", 0, 132, 227 << 10, 13000,
    )  # fmt: skip


def test_limits_are_read_and_set_by_name(cuda: Rig) -> None:
    limits = device(cuda).limits()
    assert set(limits) == set(CUDA_LIMITS) - {"sync_depth"}  # which this GPU does not have
    for name, value in limits.items():
        device(cuda).set_limit(name, value + 4096)
        assert device(cuda).limits()[name] == value + 4096
    with pytest.raises(UsageError):
        device(cuda).set_limit("stacks", 1)
    with pytest.raises(DriverError) as refused:
        device(cuda).set_limit("sync_depth", 4)
    assert "CUDA_ERROR_UNSUPPORTED_LIMIT" in refused.value.found


def test_address_is_known_by_kind_and_allocation(fake_cuda: FakeCuda, cuda: Rig) -> None:
    of, base = device(cuda), cuda.pool.address
    pinned = of.pinned(4096)
    fake_cuda.memory_elsewhere(0x7000_0000_0000, 8192)
    fake_cuda.memory_elsewhere(0x7100_0000_0000, 8192, managed=True)
    expected = [
        (base + 8, "device", base, of.granularity),
        (pinned.address + 8, "pinned", pinned.address, 4096),
        (0x7000_0000_0000, "device", 0x7000_0000_0000, 8192),
        (0x7100_0000_1FFF, "managed", 0x7100_0000_0000, 8192),
    ]
    for address, kind, start, size in expected:
        info = of.pointer_info(address)
        assert info is not None
        assert (info.kind, info.base, info.size, info.device) == (kind, start, size, 0)
    for address in (0, 12345, 0x7100_0000_2000, base + of.granularity):
        assert of.pointer_info(address) is None


def test_variable_is_found_read_and_written_by_symbol(cuda: Rig) -> None:
    module = cuda.device.load_module(SealedImage("text", IMAGE))
    address, size = module.global_address("table")
    assert size == 64
    info = device(cuda).pointer_info(address)
    assert info is not None
    assert (info.base, info.size) == (address, 64)
    assert module.read_global("table") == bytes([7]) * 64
    module.write_global("table", bytes(range(64)))
    assert module.read_global("table") == bytes(range(64))
    assert module.read_global("counter") == bytes(4)
    again = cuda.device.load_module(SealedImage("text", IMAGE))
    assert again.read_global("table") == bytes([7]) * 64  # each load resets it


def test_variable_that_is_not_there_or_of_another_size_is_refused(cuda: Rig) -> None:
    module = cuda.device.load_module(SealedImage("text", IMAGE))
    for call in (module.global_address, module.read_global, lambda name: module.write_global(name, b"")):
        with pytest.raises(ModuleError) as refused:
            call("reads")
        assert "reads" in refused.value.doing
    for size in (0, 63, 65):
        with pytest.raises(ModuleError):
            module.write_global("table", bytes(size))
    module.write_global("table", bytes(64))


def test_host_has_no_variables_and_no_function_attributes() -> None:
    module = open_host(workers=1).load_module(SealedImage("probe", kernel_image("generic", "probe")))
    with pytest.raises(ModuleError):
        module.global_address("count")
    function = module.function("count")
    assert (function.attributes, function.params) == ([], [])
    function.raise_attributes([])
    with pytest.raises(UsageError):
        function.raise_attributes([(8, 1)])
