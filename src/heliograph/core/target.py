"""Whether a core fits a machine. The caller opens the device that is described: this package opens none."""

from __future__ import annotations

import msgspec

from heliograph import _native
from heliograph._native import CudaDevice, Device
from heliograph.core.format import KERNEL_ABI
from heliograph.core.manifest import Provenance, Target
from heliograph.errors import TargetError


class Machine(msgspec.Struct, frozen=True):
    """What a core can run on here."""

    device: str  # "host" | "cuda"
    arches: tuple[str, ...]  # every architecture that runs here, best first
    abi: int = KERNEL_ABI
    processors: int = 0  # CUDA: SM count
    shared_optin: int = 0
    driver: int = 0
    name: str = ""  # CUDA: the model of GPU


def this_host() -> Machine:
    """The CPU this process runs on."""
    return Machine(device="host", arches=tuple(_native.host_levels()))


def machine_of(device: Device) -> Machine:
    """What an open device runs."""
    if not isinstance(device, CudaDevice):
        return this_host()
    return Machine(
        device="cuda",
        arches=(device.arch,),
        abi=0,
        processors=device.processors,
        shared_optin=device.shared_optin,
        driver=device.driver_version,
        name=device.name,
    )


def check_target(target: Target, machine: Machine) -> None:
    """TargetError, naming the first thing that does not fit."""
    if target.device != machine.device:
        raise _mismatch(
            f"made for a {target.device} device", f"a {machine.device} device", "capture it for this device"
        )
    if target.arch not in machine.arches:
        found = f"made for {target.arch}"
        raise _mismatch(found, f"one of {', '.join(machine.arches)}", "capture it on a machine like this one")
    if target.device == "host":
        if target.abi != machine.abi:
            raise _mismatch(
                f"kernel ABI {target.abi}", f"kernel ABI {machine.abi}", "use the version of Heliograph that made it"
            )
        return
    if target.processors != machine.processors or target.shared_optin > machine.shared_optin:
        raise _mismatch(
            f"made for {target.processors} processors with {target.shared_optin} bytes of shared memory",
            f"{machine.processors} processors with {machine.shared_optin} bytes",
            "capture it on a machine like this one",
        )
    if target.driver > machine.driver:
        raise _mismatch(f"made with driver {target.driver}", f"at most {machine.driver}", "install a newer driver")


def other_model(made: Provenance, machine: Machine) -> str:
    """A notice where a core that fits was made on another model of GPU; else empty."""
    name = {item.name: item.value for item in made.device}.get("name", machine.name)
    if machine.device != "cuda" or name == machine.name:
        return ""
    return (
        f"the core was made on {name}, this is {machine.name}: it fits, every graph is tested before its first use, "
        "and nothing about its speed is known"
    )


def _mismatch(found: str, required: str, hint: str) -> TargetError:
    return TargetError("comparing the core's target with this machine", found=found, required=required, hint=hint)
