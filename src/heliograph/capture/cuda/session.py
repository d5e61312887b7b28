"""A CUDA capture's hold on the device: opened before PyTorch initialises CUDA, because order decides what can be seen.

The images of kernels are only seen by who subscribed before the first module was loaded, and the address space is only
free before the first allocation. So: CUPTI, primary context, reservations; PyTorch finds the context there and uses it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch
import torch._dynamo  # PyTorch would import it within the first capture, and leave frames behind that hold tensors

from heliograph._native import CudaImages, Reservation
from heliograph.capture.arena import check_span
from heliograph.capture.environment import FIXED, triton_overrides
from heliograph.core.format import ROLES, region_base, region_span
from heliograph.core.layout import align
from heliograph.device.cuda import open_cuda
from heliograph.errors import CaptureError, UsageError

ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
CUDA_MAJOR = "13"


class CudaSession:
    """Images, device and the reserved regions of a slot. ``close`` gives all of it back; there is one in the life of a
    process, for PyTorch stays on the GPU."""

    def __init__(self, slot: int, index: int = 0) -> None:
        """CaptureError if PyTorch or a profiler was faster; AddressTakenError; DriverError without a usable driver."""
        check_pytorch()
        self.slot = slot
        self.images = CudaImages()
        self.regions: dict[str, RegionBytes] = {}
        try:
            self.device = open_cuda(index)
            for role in ROLES:
                reservation = self.device.reserve(region_base(slot, role), region_span(role))
                self.regions[role] = RegionBytes(role, reservation, self.device.granularity)
        except BaseException:
            self.close()
            raise
        torch.cuda.init()  # type: ignore[no-untyped-call]
        torch.cuda.set_device(index)

    def close(self) -> None:
        """Idempotent. Whatever PyTorch still holds in the regions is gone with them."""
        for role in list(self.regions):
            self.regions.pop(role).reservation.close()
        self.images.close()

    def known(self, address: int) -> str | None:
        """What the driver says of an address outside our regions, with PyTorch's name for it; None if it knows none."""
        if any(region.covers(address) for region in self.regions.values()):
            return None
        info = self.device.pointer_info(address)
        if info is None:
            return None
        return torch_allocation(address) or f"a {info.kind} allocation of {info.size} bytes at {info.base:#x}"


def check_pytorch(environment: Mapping[str, str] = os.environ) -> None:
    """Refuses a PyTorch that cannot be captured here. Each has its own error."""
    built = torch.version.cuda
    if built is None or built.partition(".")[0] != CUDA_MAJOR:
        raise CaptureError(
            "preparing a CUDA capture",
            found=f"PyTorch {torch.__version__} built for {'CUDA ' + built if built else 'no CUDA'}",
            required=f"a PyTorch built for CUDA {CUDA_MAJOR}",
            hint="install that build of PyTorch, or capture on the host device",
        )
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise CaptureError(
            "preparing a CUDA capture",
            found="CUDA initialised by PyTorch already",
            required="a process in which nothing was done on the GPU yet: kernel images are only seen as they load",
            hint="capture in a fresh process, once, with the model on the CPU and before anything touches the GPU",
        )
    given = [name for name in ALLOCATOR_VARIABLES if environment.get(name)]
    if given:
        raise UsageError(
            "preparing a CUDA capture",
            found=f"{given[0]}={environment[given[0]]}",
            required="PyTorch's allocator with its own settings: segments that expand or move have no fixed addresses",
            hint=f"unset {' and '.join(given)}",
        )
    given = triton_overrides(environment)
    if given:
        raise UsageError(
            "preparing a CUDA capture",
            found=f"{given[0]}={environment[given[0]]}",
            required="Triton with its own settings: they decide what the kernels are",
            hint=f"unset {' and '.join(given)}, or call start_in_fixed_environment() first, as the command does",
        )
    missing = [name for name in ("TRITON_DISABLE_LINE_INFO", "CUBLAS_WORKSPACE_CONFIG") if name not in environment]
    if missing:
        raise UsageError(
            "preparing a CUDA capture",
            found=f"{missing[0]} not set",
            required=", ".join(f"{name}={FIXED[name]}" for name in missing),
            hint="call heliograph.capture.environment.start_in_fixed_environment() first, as the command does",
        )


class RegionBytes:
    """How much of a region is backed with memory; more is mapped as it is needed, in multiples of the granularity."""

    def __init__(self, role: str, reservation: Reservation, granularity: int) -> None:
        self.role = role
        self.reservation = reservation
        self.mapped = 0
        self._granularity = granularity

    def covers(self, address: int) -> bool:
        return self.reservation.address <= address < self.reservation.address + self.reservation.span

    def reach(self, size: int) -> None:
        """Backs the first ``size`` bytes. OutOfMemoryError."""
        check_span(self.role, size)
        target = align(size, self._granularity)
        if target > self.mapped:
            self.reservation.map(self.mapped, target - self.mapped)
            self.mapped = target


def torch_allocation(address: int) -> str | None:
    """What PyTorch's own allocator says of an address: the name of its pool, None if it does not know it."""
    for segment in torch.cuda.memory_snapshot():  # type: ignore[no-untyped-call]
        start = segment["address"]
        if start <= address < start + segment["total_size"]:
            pool = tuple(segment["segment_pool_id"])
            if pool == (0, 0):
                return "PyTorch's default pool (allocated before the capture, or by another thread)"
            return f"PyTorch's private graph pool {pool}"
    return None
