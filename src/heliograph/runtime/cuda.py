"""What a load does on a CUDA device alone: context limits, variables of modules, attributes of functions, and what of
the device's memory is spoken for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from heliograph._native import CudaDevice, Function, Module
from heliograph.core.format import CHUNK_BYTES
from heliograph.core.manifest import Core
from heliograph.core.verify import VerifiedCore
from heliograph.errors import ModuleError
from heliograph.runtime.pinned import SLOTS
from heliograph.runtime.plan import ROUNDING, Overhead
from heliograph.runtime.staging import staging_threads

RESIDENT_THREADS: Final = 2048  # of a multiprocessor, the most of any architecture


def set_limits(device: CudaDevice, core: Core) -> None:
    """The limits of the core's context, where this one's are lower. Before the first module is loaded: later the driver
    gives a kernel less, or takes memory when it first runs."""
    present = device.limits()
    for name, value in core.limits:
        if value > present.get(name, 0):
            device.set_limit(name, value)


def overhead(device: CudaDevice, core: Core, threads: int) -> Overhead:
    """Memory that the driver and the load take beside regions and executables. ``set_limits`` has been called."""
    limits = device.limits()
    stacks = limits.get("stack", 0) * device.processors * RESIDENT_THREADS
    return Overhead(
        modules=sum(module.size for module in core.modules),
        local=stacks + limits.get("heap", 0) + limits.get("printf", 0),
        staging=staging_threads(threads) * SLOTS * CHUNK_BYTES if core.weights.size else 0,
        rounding=ROUNDING,
    )


def restore_globals(modules: Sequence[Module], verified: VerifiedCore) -> None:
    """Variables of modules as they were before the first launch. ModuleError if one is not as the core says."""
    for module, record in zip(modules, verified.core.modules, strict=True):
        for variable in record.globals:
            _, size = module.global_address(variable.name)
            if size != variable.size:
                raise ModuleError(
                    f"restoring the variable {variable.name} of {record.family}",
                    found=f"{size} bytes",
                    required=f"{variable.size}, as the core states",
                    hint="capture the core again",
                )
            module.write_global(variable.name, verified.blob(variable.blob))


def raise_attributes(functions: Sequence[Function], columns: Mapping[str, memoryview]) -> None:
    """Attributes of functions as they were at capture, before nodes are added."""
    first = columns["function.attrs"].cast("B").cast("I")
    ids, values = columns["function.attr.id"].cast("B").cast("I"), columns["function.attr.value"].cast("B").cast("q")
    for number, function in enumerate(functions):
        rows = range(first[number], first[number + 1])
        if rows:
            function.raise_attributes([(ids[row], values[row]) for row in rows])


def check_local_memory(device: CudaDevice, functions: Sequence[Function]) -> None:
    """ModuleError if a function takes more local memory than the stack limit, which is what the plan counted on: the
    driver would take the rest when the function first runs."""
    limit = device.limits().get("stack", 0)
    for function in functions:
        if function.local_bytes > limit:
            raise ModuleError(
                f"looking up kernel {function.name}",
                found=f"{function.local_bytes} bytes of local memory for each thread",
                required=f"at most {limit}, the stack limit that the core states",
                hint="capture the core again: its limits have to hold what its functions take",
            )
