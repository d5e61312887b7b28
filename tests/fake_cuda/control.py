"""The fake CUDA driver, as tests steer and read it."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

from .build import cuda_headers

_HEADER = (cuda_headers() / "cuda.h").read_text(encoding="utf-8", errors="replace")
CODES = {name: int(code) for name, code in re.findall(r"^\s+(CUDA_ERROR_\w+)\s*=\s*(\d+)", _HEADER, re.MULTILINE)}
KINDS = (
    "contexts", "modules", "libraries", "graphs", "executables", "streams", "events", "reservations", "allocations",
    "mappings", "captures", "pinned",
)  # fmt: skip
# A text image: `mixed` has holes between its parameters.
IMAGE = b"fake-image sm_90\nmixed 0:1 4:12 16:2 24:8\nnothing\n"


class FakeCuda:
    """One library in this process; ``reset`` forgets what an earlier test set."""

    def __init__(self, library: Path) -> None:
        self.path = library
        self._c = ctypes.CDLL(str(library))
        self._c.fake_live.restype = self._c.fake_memory_in_use.restype = ctypes.c_uint64
        self._c.fake_exportable.restype = ctypes.c_uint64
        self._c.fake_destroyed_in_flight.restype = ctypes.c_uint64
        self._c.fake_misuse.restype = self._c.fake_log.restype = ctypes.c_char_p
        self._c.fake_all_calls.restype = ctypes.c_char_p

    def reset(self) -> None:
        self._c.fake_reset()

    def fail(self, call: str, code: str, nth: int = 1) -> None:
        """The n-th call from now returns the code; 0: every call; -n: from the n-th on, every one."""
        self._c.fake_fail(call.encode(), nth, CODES[code])

    def fail_with_number(self, call: str, code: int) -> None:
        self._c.fake_fail(call.encode(), 1, code)

    def heal(self, call: str) -> None:
        self._c.fake_heal(call.encode())

    def fault_kernel(self, name: str, code: str) -> None:
        """The kernel faults when it runs; the error sticks to its context."""
        self._c.fake_fault_kernel(name.encode(), CODES[code])

    def limit_memory(self, total: int) -> None:
        self._c.fake_memory_limit(ctypes.c_uint64(total))

    def memory_in_use(self) -> int:
        return int(self._c.fake_memory_in_use())

    def kernel_time(self, microseconds: int) -> None:
        """How long each kernel runs, but for `spin`, which says so itself."""
        self._c.fake_kernel_time(microseconds)

    def copy_time(self, microseconds: int) -> None:
        """How long each asynchronous copy between host and device takes."""
        self._c.fake_copy_time(microseconds)

    def exportable(self) -> int:
        """Allocations whose handle can be passed to another process."""
        return int(self._c.fake_exportable())

    def edge_fault(self, on: bool) -> None:
        """Whether the first edge record of a call counts for all of its edges, as on drivers 580 to 610 (default)."""
        self._c.fake_edge_fault(on)

    def memory_elsewhere(self, address: int, size: int, *, managed: bool = False) -> None:
        """Device memory, or managed memory, that somebody else allocated."""
        self._c.fake_elsewhere(ctypes.c_uint64(address), ctypes.c_uint64(size), managed)

    def newer_attribute(self, number: int) -> None:
        """A node attribute of a newer driver."""
        self._c.fake_newer_attribute(number)

    def missing_attribute(self, number: int) -> None:
        """A node attribute that this driver does not know."""
        self._c.fake_missing_attribute(number)

    def padding(self, byte: int) -> None:
        """What the driver writes where an attribute has no members."""
        self._c.fake_padding(byte)

    def driver_version(self, version: int) -> None:
        self._c.fake_driver_version(version)

    def hide(self, entry: str) -> None:
        self._c.fake_hide(entry.encode())

    def ignore_hints(self, count: int) -> None:
        """The next address reservations go elsewhere."""
        self._c.fake_ignore_hints(count)

    def report_flags(self, flags: int) -> None:
        """What executables say their flags are, whatever they were made with."""
        self._c.fake_report_flags(flags)

    def load_eagerly(self) -> None:
        """Libraries are loaded whole, not kernel by kernel when they are needed."""
        self._c.fake_eager(1)

    def load_inside(self, call: str, image: bytes) -> None:
        """The next such call also loads an image of the driver's own."""
        self._c.fake_load_inside(call.encode(), image)

    def reset_context(self, device: int = 0) -> None:
        """Someone in this process resets the primary context."""
        self._c.fake_reset_context(device)

    def calls(self, name: str) -> int:
        return int(self._c.fake_calls(name.encode()))

    def all_calls(self) -> dict[str, int]:
        """How often each entry point was called since the reset."""
        pairs = (line.rsplit(" ", 1) for line in self._c.fake_all_calls().decode().splitlines())
        return {name: int(count) for name, count in pairs}

    def live(self) -> dict[str, int]:
        """The kinds of objects of which any are alive, with their number."""
        counts = {kind: int(self._c.fake_live(kind.encode())) for kind in KINDS}
        return {kind: count for kind, count in counts.items() if count}

    def destroyed_in_flight(self) -> int:
        """Executables destroyed while their launches ran."""
        return int(self._c.fake_destroyed_in_flight())

    def misuse(self) -> str:
        return str(self._c.fake_misuse().decode())

    def log(self) -> list[str]:
        return str(self._c.fake_log().decode()).splitlines()
