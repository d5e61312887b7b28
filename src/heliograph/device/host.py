"""The host device: how it is opened, and where the kernel images that the package ships are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from heliograph import _native
from heliograph._native import HostDevice
from heliograph.errors import ModuleError

KERNELS = Path(_native.__file__).parent / "_kernels"
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def open_host(
    workers: int = 0, cpus: Sequence[int] = (), memory_limit: int = 0, status: int | None = None
) -> HostDevice:
    """Opens the CPU as a device.

    workers: threads that run a launch; 0 is one for each processor that this process may use. cpus: where they run.
    memory_limit: bytes that may be mapped or held by executables; 0 is none. status: the descriptor of a shared file
    of at least 4 KiB that shows what each worker runs and keeps the record of a fault.
    """
    if workers == 0:
        workers = min(len(cpus) or usable_processors(), usable_processors())
    return HostDevice(workers, cpus, memory_limit, status_fd=-1 if status is None else status)


def usable_processors(quota: Path = _QUOTA) -> int:
    """Processors this process may use: its CPU set, and the control group's quota where there is one.

    More workers than the quota has processors would be stopped together in every period.
    """
    allowed = len(os.sched_getaffinity(0))
    try:
        share, period = quota.read_text().split()
    except (OSError, ValueError):  # no such control group, or another version's file
        return allowed
    if share == "max":
        return allowed
    return max(1, min(allowed, int(share) // int(period)))


def best_level() -> str:
    """The best instruction-set level that this CPU can run and the package has kernels for."""
    for level in _native.host_levels():
        if (KERNELS / level).is_dir():
            return level
    raise ModuleError(
        "choosing the host kernels",
        found=f"no kernels for {', '.join(_native.host_levels())}",
        required="kernels of one of these levels beside the extension",
        hint="rebuild the package with HELIOGRAPH_HOST_KERNELS=ON",
    )


def families(level: str) -> tuple[str, ...]:
    """The kernel families of a level, sorted."""
    return tuple(sorted(file.stem for file in (KERNELS / level).glob("*.so")))


def kernel_image(level: str, family: str) -> bytes:
    """The image of one kernel family."""
    try:
        return (KERNELS / level / f"{family}.so").read_bytes()
    except OSError as error:
        raise ModuleError(
            f"reading the kernels {family!r} for {level}",
            found=str(error.strerror),
            required=f"one of {', '.join(families(level)) or 'no families at all'}",
            hint="rebuild the package with HELIOGRAPH_HOST_KERNELS=ON",
        ) from error
