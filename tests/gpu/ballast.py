"""A process that holds device memory: each line that it reads says how many bytes are to be left free, fewer each time;
it answers with how many are. Ends with its input. No torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

SLOT = 3
ROLE = "state"


class Ballast:
    """The other end of such a process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._to: IO[str] = process.stdin
        self._from: IO[str] = process.stdout

    def leave(self, free: int) -> int:
        """Takes memory until ``free`` bytes and less than a granule more are left; returns what is free."""
        self._to.write(f"{free}\n")
        self._to.flush()
        return int(self._from.readline())


@contextmanager
def ballast() -> Iterator[Ballast]:
    command = [sys.executable, str(Path(__file__))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Ballast(process)
        assert process.stdin is not None
        process.stdin.close()


def main() -> None:
    from heliograph.core.format import region_base, region_span
    from heliograph.device.cuda import open_cuda

    device = open_cuda()
    memory = device.reserve(region_base(SLOT, ROLE), region_span(ROLE))
    granule, taken = device.granularity, 0
    for line in sys.stdin:
        free = device.free_bytes or 0
        excess = (free - int(line)) // granule * granule
        if excess > 0:
            memory.map(taken, excess)
            taken += excess
        print(device.free_bytes, flush=True)
    memory.close()
    device.close()


if __name__ == "__main__":
    main()
