"""What Python packs is what the kernels read: names, sizes and pointers of every function, on every level."""

from __future__ import annotations

import importlib
import os
import pkgutil
import signal
import sys
from pathlib import Path

import pytest

import heliograph.ops
from heliograph.device.host import KERNELS
from heliograph.ops.launch import Kernel

from .harness import LEVELS, functions
from .memory import Guarded

NOT_OPS = {"probe", "limits"}  # for tests of the driver and of speed; families of aten have their own test
SHIPPED = sorted(folder.name for folder in KERNELS.iterdir())


def op_kernels() -> list[Kernel]:
    found: list[Kernel] = []
    for module in pkgutil.walk_packages(heliograph.ops.__path__, "heliograph.ops."):
        if not module.name.endswith(("reference", "references")):
            for value in vars(importlib.import_module(module.name)).values():
                kernels = (
                    value
                    if isinstance(value, (tuple, list))
                    else value.values()
                    if isinstance(value, dict)
                    else [value]
                )
                found += [kernel for kernel in kernels if isinstance(kernel, Kernel)]
    return found


KERNEL_LIST = list({(kernel.family, kernel.name): kernel for kernel in op_kernels()}.values())


@pytest.mark.parametrize("kernel", KERNEL_LIST, ids=lambda kernel: f"{kernel.family}.{kernel.name}")
def test_parameter_block_is_the_one_the_module_states(kernel: Kernel, level: str) -> None:
    function = functions(level, kernel.family)[kernel.name]
    assert kernel.params.size == function.param_bytes
    assert kernel.params.pointer_offsets == function.pointer_offsets


def test_every_function_of_every_family_belongs_to_an_op(level: str) -> None:
    families = {path.stem for path in (KERNELS / level).glob("*.so") if not path.stem.startswith("aten")} - NOT_OPS
    stated = {(family, name) for family in families for name in functions(level, family)}
    assert stated == {(kernel.family, kernel.name) for kernel in KERNEL_LIST if not kernel.family.startswith("aten")}


def test_levels_this_machine_runs_are_among_those_shipped() -> None:
    assert set(LEVELS) <= set(SHIPPED)
    assert "generic" in LEVELS


@pytest.mark.parametrize("shipped", SHIPPED)
def test_module_needs_nothing_and_holds_no_path(shipped: str) -> None:
    root = str(Path(heliograph.ops.__file__).parents[3]).encode()
    for path in (KERNELS / shipped).glob("*.so"):
        image = path.read_bytes()
        assert image.startswith(b"\x7fELF")
        assert root not in image
        assert b"libc.so" not in image
        assert b"GNU_HASH" not in image  # sections are named nowhere but in an unstripped string table


def _ends_by(action: object) -> int:
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        action()  # type: ignore[operator]
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_guarded_memory_faults_one_byte_behind_its_end() -> None:
    import ctypes

    memory = Guarded(100)
    assert _ends_by(lambda: ctypes.string_at(memory.address, 100)) == 0
    assert _ends_by(lambda: ctypes.string_at(memory.address + 1, 100)) == -signal.SIGSEGV
    assert memory.intact()
    ctypes.memset(memory.address - 1, 0, 1)
    assert not memory.intact()
    memory.close()


def test_ops_are_known_without_torch() -> None:
    code = "import sys, heliograph.ops.lowerings; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]) == 0
