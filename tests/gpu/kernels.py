"""Kernels of these tests: compiled by nvcc, loaded and launched through the driver, beside PyTorch's own."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

BUFFER_POINTER, BUFFER_SIZE, END = 1, 2, 0  # CU_LAUNCH_PARAM_*


@cache
def driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(result: int, call: str) -> None:
    if result:
        name = ctypes.c_char_p()
        driver().cuGetErrorName(result, ctypes.byref(name))
        raise RuntimeError(f"{call}: {name.value!r}")


def compiled(source: str, *flags: str) -> bytes:
    """A cubin for this GPU."""
    major, minor = torch.cuda.get_device_capability()
    return cubin(source, f"sm_{major}{minor}", *flags)


@cache
def cubin(source: str, arch: str, *flags: str) -> bytes:
    """The same source gives the same bytes."""
    with TemporaryDirectory() as folder:
        Path(folder, "kernels.cu").write_text(source)
        command = ["nvcc", "-cubin", f"-arch={arch}", *flags, "-o", "kernels.cubin", "kernels.cu"]
        subprocess.run(command, check=True, cwd=folder, capture_output=True)
        return Path(folder, "kernels.cubin").read_bytes()


class Module:
    """A loaded cubin."""

    def __init__(self, image: bytes) -> None:
        torch.cuda.current_stream()  # the context is current in this thread
        self._image = image
        self._module = ctypes.c_void_p()
        _check(driver().cuModuleLoadData(ctypes.byref(self._module), image), "cuModuleLoadData")

    def function(self, name: str) -> ctypes.c_void_p:
        found = ctypes.c_void_p()
        _check(driver().cuModuleGetFunction(ctypes.byref(found), self._module, name.encode()), "cuModuleGetFunction")
        return found

    def address(self, name: str) -> int:
        """Of a variable."""
        address, size = ctypes.c_uint64(), ctypes.c_size_t()
        call = driver().cuModuleGetGlobal_v2
        _check(call(ctypes.byref(address), ctypes.byref(size), self._module, name.encode()), "cuModuleGetGlobal")
        return address.value


def allow_shared(function: ctypes.c_void_p, size: int) -> None:
    _check(driver().cuFuncSetAttribute(function, 8, size), "cuFuncSetAttribute")


def launch(
    function: ctypes.c_void_p,
    params: Sequence[bytes],
    *,
    buffer: bytes | None = None,
    grid: int = 1,
    block: int = 1,
    shared: int = 0,
) -> None:
    """Launches on PyTorch's current stream: parameters one by one, or all of them in one ``buffer``."""
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    if buffer is None:
        kept = [ctypes.create_string_buffer(data, len(data)) for data in params]
        pointers = (ctypes.c_void_p * max(1, len(kept)))(*(ctypes.addressof(each) for each in kept))
        arguments, extra = ctypes.cast(pointers, ctypes.c_void_p), None
    else:
        data, size = ctypes.create_string_buffer(buffer, len(buffer)), ctypes.c_size_t(len(buffer))
        words = (ctypes.c_void_p * 5)(BUFFER_POINTER, ctypes.addressof(data), BUFFER_SIZE, ctypes.addressof(size), END)
        arguments, extra = None, ctypes.cast(words, ctypes.c_void_p)
    _check(
        driver().cuLaunchKernel(function, grid, 1, 1, block, 1, 1, shared, stream, arguments, extra), "cuLaunchKernel"
    )


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_uint32), ("padding", ctypes.c_uint32), ("value", ctypes.c_ubyte * 64))


class _Configuration(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint32),
    )


class _KernelNode(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared", ctypes.c_uint32),
        ("params", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


def call(name: str, *arguments: object) -> None:
    """A call of the driver that has to succeed."""
    _check(getattr(driver(), name)(*arguments), name)


def stream() -> ctypes.c_void_p:
    """PyTorch's current stream."""
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def _pointers(params: Sequence[bytes]) -> tuple[ctypes.c_void_p, list[object]]:
    """The address of an array of pointers to parameters, and what has to live as long."""
    kept = [ctypes.create_string_buffer(data, len(data)) for data in params]
    pointers = (ctypes.c_void_p * max(1, len(kept)))(*(ctypes.addressof(each) for each in kept))
    return ctypes.cast(pointers, ctypes.c_void_p), [kept, pointers]


def launch_with(
    function: ctypes.c_void_p,
    params: Sequence[bytes],
    attributes: Sequence[tuple[int, bytes]],
    *,
    grid: int = 1,
    block: int = 1,
) -> None:
    """Launches on PyTorch's current stream with launch attributes: (the driver's id, bytes of the value)."""
    given = (_Attribute * max(1, len(attributes)))()
    for at, (number, value) in enumerate(attributes):
        given[at].id = number
        ctypes.memmove(given[at].value, value, len(value))
    three = ctypes.c_uint32 * 3
    where = ctypes.cast(given, ctypes.c_void_p)
    configuration = _Configuration(three(grid, 1, 1), three(block, 1, 1), 0, stream(), where, len(attributes))
    arguments, kept = _pointers(params)
    call("cuLaunchKernelEx", ctypes.byref(configuration), function, arguments, None)
    del kept


def fill(tensor: torch.Tensor, value: int, element: int) -> None:
    """Sets all elements of 1, 2 or 4 bytes of a tensor's memory."""
    count = ctypes.c_size_t(tensor.numel() * tensor.element_size() // element)
    value_type = {1: ctypes.c_ubyte, 2: ctypes.c_ushort, 4: ctypes.c_uint32}[element]
    call(f"cuMemsetD{8 * element}Async", ctypes.c_uint64(tensor.data_ptr()), value_type(value), count, stream())


def copy(to: torch.Tensor, source: torch.Tensor) -> None:
    """From one tensor's memory to another's, on the device."""
    size = ctypes.c_size_t(source.numel() * source.element_size())
    call("cuMemcpyDtoDAsync_v2", ctypes.c_uint64(to.data_ptr()), ctypes.c_uint64(source.data_ptr()), size, stream())


class _Growing:
    """The graph that PyTorch's current stream captures, to add a node that no launch makes."""

    def __init__(self) -> None:
        status, number, self.count = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_size_t()
        self.graph, self.last, data = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        found = (ctypes.byref(each) for each in (status, number, self.graph, self.last, data, self.count))
        call("cuStreamGetCaptureInfo_v3", stream(), *found)

    def follow(self, node: ctypes.c_void_p) -> None:
        """What is submitted next comes after ``node``."""
        only = (ctypes.c_void_p * 1)(node)
        replace = 1  # CU_STREAM_SET_CAPTURE_DEPENDENCIES
        call("cuStreamUpdateCaptureDependencies_v2", stream(), only, None, ctypes.c_size_t(1), ctypes.c_uint(replace))


def empty_node() -> None:
    """An empty node after what was captured so far; nothing outside a capture."""
    if torch.cuda.is_current_stream_capturing():
        growing, node = _Growing(), ctypes.c_void_p()
        call("cuGraphAddEmptyNode", ctypes.byref(node), growing.graph, growing.last, growing.count)
        growing.follow(node)


def child_graph(function: ctypes.c_void_p, steps: Sequence[Sequence[bytes]], *, block: int) -> None:
    """A graph inside the captured one: launches of one function in a row. Outside a capture they are launched."""
    if not torch.cuda.is_current_stream_capturing():
        for params in steps:
            launch(function, params, block=block)
        return
    growing, inner, child = _Growing(), ctypes.c_void_p(), ctypes.c_void_p()
    call("cuGraphCreate", ctypes.byref(inner), ctypes.c_uint(0))
    before = ctypes.c_void_p()
    for number, params in enumerate(steps):
        arguments, kept = _pointers(params)
        three, node = ctypes.c_uint32 * 3, ctypes.c_void_p()
        stated = _KernelNode(function, three(1, 1, 1), three(block, 1, 1), 0, arguments, None, None, None)
        after = ctypes.byref(before) if number else None
        count = ctypes.c_size_t(1 if number else 0)
        call("cuGraphAddKernelNode_v2", ctypes.byref(node), inner, after, count, ctypes.byref(stated))
        before = node
        del kept
    call("cuGraphAddChildGraphNode", ctypes.byref(child), growing.graph, growing.last, growing.count, inner)
    growing.follow(child)
    call("cuGraphDestroy", inner)
