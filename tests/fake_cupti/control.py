"""The fake CUPTI, as tests steer and read it; and an application that calls the fake driver, as cuBLAS or Triton do."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

from fake_cuda.build import cuda_headers
from fake_cuda.control import FakeCuda

_HEADER = (cuda_headers() / "cupti_result.h").read_text(encoding="utf-8", errors="replace")
CODES = {name: int(code) for name, code in re.findall(r"^\s+(CUPTI_ERROR_\w+)\s*=\s*(\d+)", _HEADER, re.MULTILINE)}


class FakeCupti:
    """One library in this process; ``reset`` forgets what an earlier test set, its subscriber too."""

    def __init__(self, library: Path) -> None:
        self.path = library
        self._c = ctypes.CDLL(str(library))

    def reset(self) -> None:
        self._c.fake_cupti_reset()

    def fail(self, call: str, code: str) -> None:
        """The next such call returns the code."""
        self._c.fake_cupti_fail(call.encode(), CODES[code])

    def fail_with_number(self, call: str, code: int) -> None:
        self._c.fake_cupti_fail(call.encode(), code)

    def attach_tool(self) -> None:
        """As under Nsight: another is subscribed."""
        self._c.fake_cupti_tool(1)

    def replace_image(self, data: bytes) -> None:
        """What is handed out as the next image."""
        self._c.fake_cupti_replace(data, ctypes.c_size_t(len(data)))

    def subscribed(self) -> bool:
        return bool(self._c.fake_cupti_subscribed())

    def told(self) -> int:
        """Callbacks that were made."""
        return int(self._c.fake_cupti_told())


class App:
    """Code in this process that uses the driver itself, by entry points, with a context current in this thread."""

    VERSIONS = (2000, 2010, 4000, 7000, 10000, 10010, 11000, 11060, 12000, 12030, 12050)

    def __init__(self, fake: FakeCuda) -> None:
        self._c = ctypes.CDLL(str(fake.path))
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxPushCurrent", context)

    def close(self) -> None:
        self.call("cuCtxPopCurrent", ctypes.byref(ctypes.c_void_p()))
        self.call("cuDevicePrimaryCtxRelease", 0)

    def entry(self, name: str) -> int:
        """Address of an entry point."""
        for version in self.VERSIONS:
            found, status = ctypes.c_void_p(), ctypes.c_int()
            query = (name.encode(), ctypes.byref(found), version, ctypes.c_uint64(0), ctypes.byref(status))
            if self._c.cuGetProcAddress_v2(*query) == 0 and found.value:
                return found.value
        raise KeyError(name)

    def result(self, name: str, *arguments: object) -> int:
        entry = ctypes.CFUNCTYPE(ctypes.c_int)(self.entry(name))
        self._c.fake_of_somebody_else(name.startswith("cuLaunch"))  # who may use kernels that were not loaded
        try:
            return int(entry(*arguments))
        finally:
            self._c.fake_of_somebody_else(0)

    def call(self, name: str, *arguments: object) -> None:
        code = self.result(name, *arguments)
        assert code == 0, f"{name}: {code}"

    def handle(self, name: str, *arguments: object) -> ctypes.c_void_p:
        """What a call writes through its first argument."""
        out = ctypes.c_void_p()
        self.call(name, ctypes.byref(out), *arguments)
        return out

    def load_library(self, image: bytes) -> ctypes.c_void_p:
        return self.handle("cuLibraryLoadData", image, None, None, 0, None, None, 0)

    def kernel(self, library: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
        return self.handle("cuLibraryGetKernel", library, name.encode())

    def launch(self, function: ctypes.c_void_p, stream: ctypes.c_void_p, *arguments: object) -> None:
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))  # type: ignore[arg-type]
        self.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, stream, pointers, None)
