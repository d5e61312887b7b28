"""Runs an op's lowering on the kernels directly: no driver, no capture, every buffer at a guard page.

A launch is a call of the kernel's function through ctypes over ranges of blocks that a ``Split`` chooses, so a kernel
that depends on how its grid is cut gives other bytes here.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path

import torch
from hypothesis import HealthCheck, settings
from torch import Tensor

import heliograph.ops.lowerings
import heliograph.ops.references  # noqa: F401
from heliograph import _native
from heliograph.device.host import KERNELS
from heliograph.ops.launch import LOWERINGS, Kernel, Value, View

from .memory import DTYPES, Arena, arena

BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 64, 256)
LEVELS = [level for level in _native.host_levels() if (KERNELS / level).is_dir()]
Range = tuple[int, int]
Split = Callable[[int], Iterable[Range]]


def examples(count: int) -> settings:
    """Settings of a property: ``count`` examples, the same in every run."""
    quiet = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=count, deadline=None, derandomize=True, suppress_health_check=quiet)


# ---- modules -------------------------------------------------------------------------------------------------------
class _Function(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("run", ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_uint32, ctypes.c_uint32)),
        ("param_bytes", ctypes.c_uint32),
        ("pointer_count", ctypes.c_uint32),
        ("pointer_offsets", ctypes.POINTER(ctypes.c_uint32)),
    ]


class _Module(ctypes.Structure):
    _fields_ = [
        ("abi", ctypes.c_uint32),
        ("function_count", ctypes.c_uint32),
        ("family", ctypes.c_char_p),
        ("level", ctypes.c_char_p),
        ("functions", ctypes.POINTER(_Function)),
    ]


@dataclass(frozen=True, slots=True)
class Function:
    """One function of a kernel module, as the module states it."""

    name: str
    run: Callable[[bytes, int, int], None]
    param_bytes: int
    pointer_offsets: tuple[int, ...]


@cache
def functions(level: str, family: str) -> dict[str, Function]:
    """The functions of a kernel family of an instruction-set level."""
    return functions_of(KERNELS / level / f"{family}.so", level, family)


def functions_of(path: Path, level: str, family: str) -> dict[str, Function]:
    """The functions of a module file."""
    module = _Module.in_dll(ctypes.CDLL(str(path)), "heliograph_module")
    stated = (module.abi, module.family.decode(), module.level.decode())
    if stated != (1, family, level):
        raise AssertionError(f"{path} states {stated}")
    found = (module.functions[i] for i in range(module.function_count))
    return {
        f.name.decode(): Function(
            f.name.decode(), f.run, f.param_bytes, tuple(f.pointer_offsets[i] for i in range(f.pointer_count))
        )
        for f in found
    }


# ---- how a grid is cut ---------------------------------------------------------------------------------------------
def whole(blocks: int) -> Iterable[Range]:
    return [(0, blocks)]


def singles_backwards(blocks: int) -> Iterable[Range]:
    return [(i, i + 1) for i in reversed(range(blocks))]


def shuffled(seed: int) -> Split:
    """Ranges of odd lengths in random order."""

    def split(blocks: int) -> Iterable[Range]:
        source = random.Random(seed)
        cuts = [0]
        while cuts[-1] < blocks:
            cuts.append(min(blocks, cuts[-1] + source.choice((1, 3, 5, 7, 13))))
        ranges = list(pairwise(cuts))
        source.shuffle(ranges)
        return ranges

    return split


# ---- calls ---------------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class KernelRecorder:
    """``ops.launch.Recorder`` that runs what it is given, at once."""

    memory: Arena
    level: str = LEVELS[0]
    split: Split = whole
    threads: int = 1
    modules: Mapping[str, Path] = field(default_factory=dict)  # families taken from another file
    launched: list[str] = field(default_factory=list)

    def launch(self, kernel: Kernel, blocks: int, **params: Value | None) -> None:
        data, _ = kernel.params.pack(params)
        other = self.modules.get(kernel.family)
        known = functions_of(other, self.level, kernel.family) if other else functions(self.level, kernel.family)
        function = known[kernel.name]
        self.launched.append(kernel.name)
        if self.threads == 1:
            for first, last in self.split(blocks):
                function.run(data, first, last)
        else:
            with ThreadPoolExecutor(self.threads) as pool:
                list(pool.map(lambda r: function.run(data, *r), self.split(blocks)))

    def scratch(self, shape: Sequence[int], dtype: str) -> View:
        strides = torch.empty(tuple(shape), device="meta").stride()
        return self.memory.empty(tuple(shape), strides, dtype)

    def fill(self, view: View, byte: int) -> None:
        target = self.memory.tensor(view)
        ctypes.memset(target.data_ptr(), byte, target.numel() * target.element_size())

    def copy(self, to: View, source: View) -> None:
        self.memory.tensor(to).copy_(self.memory.tensor(source))


@dataclass(frozen=True, slots=True)
class Result:
    """What a call left: its fresh outputs, its arguments afterwards (a tensor for each tensor), what it launched."""

    outs: tuple[Tensor, ...]
    args: tuple[object, ...]
    launched: tuple[str, ...]

    @property
    def out(self) -> Tensor:
        (only,) = self.outs
        return only


def call(
    name: str,
    *args: object,
    level: str = LEVELS[0],
    split: Split = whole,
    threads: int = 1,
    modules: Mapping[str, Path] | None = None,
) -> Result:
    """Calls an op of namespace heliograph on its host kernels, in guarded memory."""
    overload = getattr(torch.ops.heliograph, name).default
    with arena() as memory:
        placed = [memory.place(value) if isinstance(value, Tensor) else value for value in args]
        fake = overload(*(value.to("meta") if isinstance(value, Tensor) else value for value in args))
        fresh = () if fake is None else (fake,) if isinstance(fake, Tensor) else tuple(fake)
        outs = tuple(memory.empty(tuple(t.shape), tuple(t.stride()), DTYPES[t.dtype]) for t in fresh)
        recorder = KernelRecorder(memory, level, split, threads, modules or {})
        LOWERINGS[str(overload)](recorder, tuple(placed), {}, outs)
        return Result(
            tuple(memory.tensor(view).clone() for view in outs),
            tuple(memory.tensor(v).clone() if isinstance(v, View) else v for v in placed),
            tuple(recorder.launched),
        )


def reference(name: str, *args: object) -> tuple[tuple[Tensor, ...], tuple[object, ...]]:
    """The op in PyTorch on copies: its outputs, its arguments afterwards."""
    copies = tuple(value.clone() if isinstance(value, Tensor) else value for value in args)
    result = getattr(torch.ops.heliograph, name).default(*copies)
    outs = () if result is None else (result,) if isinstance(result, Tensor) else tuple(result)
    return outs, copies


def same_bytes(a: Tensor, b: Tensor) -> bool:
    """Bit-equal, without a NaN on either side."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.is_floating_point() and (a.isnan().any() or b.isnan().any()):
        return False
    return a.contiguous().flatten().view(torch.uint8).equal(b.contiguous().flatten().view(torch.uint8))
