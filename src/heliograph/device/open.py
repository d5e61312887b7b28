"""The device that a core is for, opened for running it."""

from __future__ import annotations

from heliograph._native import Device
from heliograph.device.host import open_host


def open_device(
    kind: str, *, workers: int = 0, memory_limit: int = 0, status: int | None = None, index: int = 0
) -> Device:
    """Opens a device of a kind ("host" or "cuda"); the caller closes it.

    workers, memory_limit (bytes, 0: none) and status are the host's (``open_host``); index is the CUDA device's.
    DriverError if there is no such device here.
    """
    if kind == "cuda":
        from heliograph.device.cuda import open_cuda  # noqa: PLC0415 - a host pays for nothing of it

        return open_cuda(index, compiles=False)
    return open_host(workers=workers, memory_limit=memory_limit, status=status)
