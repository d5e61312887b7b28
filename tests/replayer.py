"""A native replayer (replayer.cpp), as native code of somebody else's would launch a lent executable."""

from __future__ import annotations

import ctypes
import os
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from fake_cuda.build import compiler, cuda_headers

FLAGS = ("-std=c++20", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-pthread")


@cache
def _library() -> ctypes.CDLL:
    """Compiled once a process."""
    with TemporaryDirectory() as folder:
        made = Path(folder) / "replayer.so"
        source = Path(__file__).with_suffix(".cpp")
        command = [*compiler(), *FLAGS, "-isystem", str(cuda_headers()), "-o", str(made), str(source), "-ldl"]
        subprocess.run(command, check=True)
        library = ctypes.CDLL(str(made))
    library.start.argtypes = (ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64)
    library.start.restype = ctypes.c_void_p
    library.stop.argtypes = (ctypes.c_void_p,)
    return library


class Replayer:
    """Launches so many times, from a thread and on a stream of its own, and waits for none of it."""

    def __init__(self, handle: int, launches: int) -> None:
        driver = os.environ.get("HELIOGRAPH_LIBCUDA") or "libcuda.so.1"
        self._replayer = _library().start(driver.encode(), handle, launches)
        if not self._replayer:
            raise RuntimeError(f"no driver {driver}")

    def stop(self) -> None:
        """Returns when it launches no more. RuntimeError if the driver refused a call."""
        result = _library().stop(self._replayer)
        if result:
            raise RuntimeError(f"the replayer met error {result} of the driver")
