"""Whether a core fits a machine. The machine is described by the caller: this package opens no device."""

from __future__ import annotations

from dataclasses import dataclass

from heliograph import _native
from heliograph.core.format import KERNEL_ABI
from heliograph.core.manifest import Target
from heliograph.errors import TargetError


@dataclass(frozen=True, slots=True)
class Machine:
    """What a core can run on here."""

    device: str  # "host" | "cuda"
    arches: tuple[str, ...]  # every architecture that runs here, best first
    abi: int = KERNEL_ABI
    processors: int = 0  # CUDA: SM count
    shared_optin: int = 0
    driver: int = 0


def this_host() -> Machine:
    """The CPU this process runs on."""
    return Machine(device="host", arches=tuple(_native.host_levels()))


def check_target(target: Target, machine: Machine) -> None:
    """TargetError, naming the first thing that does not fit."""
    raise NotImplementedError
