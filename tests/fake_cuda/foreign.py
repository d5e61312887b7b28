"""Somebody else in the process: graphs, kernels and streams that this package did not make, in the fake driver."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from .control import FakeCuda

DEVICE, UNIFIED, HOST, ARRAY = 2, 4, 1, 3  # CUmemorytype
GLOBAL, THREAD_LOCAL = 0, 1  # CUstreamCaptureMode
One = tuple[int, int, int]


class Foreign:
    """What it makes lives in device 0's context until ``close``: the test needs a device there meanwhile."""

    def __init__(self, fake: FakeCuda) -> None:
        self._c = ctypes.CDLL(str(fake.path))
        self._graphs: list[int] = []
        self._libraries: list[int] = []
        self._streams: list[int] = []

    def _call(self, name: str, *arguments: object) -> None:
        given = [ctypes.c_uint64(value) if isinstance(value, int) else value for value in arguments]
        code = getattr(self._c, f"foreign_{name}")(*given)
        if code:
            raise RuntimeError(f"{name}: CUresult {code}")

    def _made(self, name: str, *arguments: object) -> int:
        out = ctypes.c_uint64()
        self._call(name, *arguments, ctypes.byref(out))
        return out.value

    def close(self) -> None:
        for graph in self._graphs:
            self._call("destroy_graph", graph)
        for library in self._libraries:
            self._call("unload_library", library)
        for stream in self._streams:
            self._call("destroy_stream", stream)
        vars(self).clear()

    # ---- kernels ----
    def library(self, image: bytes) -> int:
        library = self._made("library", ctypes.c_char_p(image))
        self._libraries.append(library)
        return library

    def kernel(self, library: int, name: str) -> int:
        return self._made("kernel", library, ctypes.c_char_p(name.encode()))

    def function(self, kernel: int) -> int:
        return self._made("function", kernel)

    def set_kernel(self, kernel: int, number: int, value: int) -> None:
        self._call("kernel_attribute", kernel, number, value)

    def set_function(self, function: int, number: int, value: int) -> None:
        self._call("function_attribute", function, number, value)

    # ---- graphs ----
    def graph(self) -> int:
        graph = self._made("graph")
        self._graphs.append(graph)
        return graph

    def launch(
        self,
        graph: int,
        *,
        function: int = 0,
        kernel: int = 0,
        params: Sequence[bytes] = (),
        buffer: bytes | None = None,
        grid: One = (1, 1, 1),
        block: One = (1, 1, 1),
        shared: int = 0,
    ) -> int:
        """A kernel node: ``params`` one by one, or all of them in one ``buffer``."""
        held = [ctypes.create_string_buffer(data, max(len(data), 1)) for data in params]
        array = (ctypes.c_void_p * max(len(held), 1))(*[ctypes.addressof(data) for data in held])
        one = None if buffer is None else ctypes.create_string_buffer(buffer, len(buffer))
        three = ctypes.c_uint * 3
        return self._made(
            "launch_node", graph, function, kernel, three(*grid), three(*block), shared,
            array if one is None else ctypes.c_void_p(), one, 0 if buffer is None else len(buffer),
        )  # fmt: skip

    def attribute(self, node: int, number: int, value: bytes) -> None:
        self._call("node_attribute", node, number, ctypes.create_string_buffer(value.ljust(64, b"\0"), 64))

    def memset(self, graph: int, to: int, value: int, *, element: int, width: int, height: int, pitch: int) -> int:
        return self._made("memset_node", graph, to, pitch, value, element, width, height)

    def copy(
        self, graph: int, to: int, source: int, width: int, *, height: int = 1, depth: int = 1,
        types: tuple[int, int] = (DEVICE, DEVICE), x: int = 0, y: int = 0,
    ) -> int:  # fmt: skip
        """``types`` of source and destination; ``x`` and ``y``: where in the source it begins."""
        return self._made("copy_node", graph, to, source, width, height, depth, *types, x, y)

    def child(self, graph: int, inner: int) -> int:
        return self._made("child_node", graph, inner)

    def record(self, graph: int, event: int) -> int:
        return self._made("event_node", graph, event, 1)

    def wait(self, graph: int, event: int) -> int:
        return self._made("event_node", graph, event, 0)

    def node(self, graph: int, kind: int) -> int:
        """A node of any type, known or not."""
        return self._made("node", graph, kind)

    def edge(self, graph: int, source: int, to: int, data: bytes = bytes(8)) -> None:
        self._call("edge", graph, source, to, ctypes.create_string_buffer(data, 8))

    # ---- streams ----
    def stream(self) -> int:
        stream = self._made("stream")
        self._streams.append(stream)
        return stream

    def begin_capture(self, stream: int, mode: int = THREAD_LOCAL) -> None:
        self._call("begin_capture", stream, mode)

    def end_capture(self, stream: int) -> int:
        graph = self._made("end_capture", stream)
        self._graphs.append(graph)
        return graph
