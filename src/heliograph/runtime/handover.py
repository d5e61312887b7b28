"""The preparing process becomes the serving program: same process id, nothing of the preparation left.

The order matters. Whoever prepared closes its graphs, programs and arenas; ``handover`` checks on the devices that
nothing is left, gives the devices back, marks every other descriptor close-on-exec and calls exec. Exec ends all
other threads and frees all memory of the process, but not what a driver holds for it, which is why the devices go
first. Handlers registered with ``atexit`` do not run: the process does not exit.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

from heliograph._native import Device
from heliograph.errors import StorageError, UsageError

HELD = ("executables_live", "reservations_live", "bytes_mapped")


def handover(
    command: Sequence[str],
    *,
    devices: Sequence[Device] = (),
    keep: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
) -> NoReturn:
    """Replaces this process by ``command``, whose first word is the path of a program.

    devices: those opened in this process; each is drained, found empty, and closed.
    keep: descriptors that the command inherits beside 0, 1 and 2 (a listening socket).
    environment: of the command; left out, this process's.

    UsageError, with the devices still open, if something on a device is alive. StorageError if the program cannot be
    executed; the devices are closed then.
    """
    for device in devices:
        device.synchronize()
    for device in devices:
        _refuse_live(device)
    close_on_exec(keep)
    for device in devices:
        device.close()
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(command[0], list(command), dict(os.environ if environment is None else environment))  # noqa: S606
    except OSError as error:
        raise StorageError(
            f"handing over to {command[0]}",
            found=error.strerror or str(error),
            required="a program that this user may execute",
            hint="give the path of an interpreter or program; no shell looks for it",
        ) from error


def _refuse_live(device: Device) -> None:
    counters = device.counters()
    live = [f"{name} {counters[name]}" for name in HELD if counters.get(name)]
    if live:
        raise UsageError(
            f"handing over from the {device.kind} device",
            found=", ".join(live),
            required="nothing alive on it",
            hint="close programs, reset graphs and close arenas first",
        )


def close_on_exec(keep: Sequence[int] = ()) -> None:
    """Marks every open descriptor but 0, 1, 2 and ``keep``, which are marked to be inherited."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            with suppress(OSError):  # the listing's own descriptor is gone by now
                os.set_inheritable(int(name), False)
    for descriptor in keep:
        os.set_inheritable(descriptor, True)
