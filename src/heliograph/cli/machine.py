"""What this machine is, and whether a core fits it. Facts are gathered in one place and judged by pure functions."""

from __future__ import annotations

import os
import resource
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import util
from mmap import PAGESIZE
from pathlib import Path
from typing import Any

from blake3 import blake3

from heliograph import _native, errors
from heliograph.core import manifest
from heliograph.core.format import SLOTS, region_base, region_span
from heliograph.core.policy import home_folder
from heliograph.core.target import Machine, check_target, machine_of, this_host
from heliograph.core.verify import VerifiedCore
from heliograph.device import host, modules
from heliograph.device.open import open_device
from heliograph.runtime.budget import available_bytes
from heliograph.runtime.cuda import overhead
from heliograph.runtime.plan import NO_OVERHEAD, fixed_bytes, plan_memory


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about this machine; a test makes one up to see a probe fail."""

    python: tuple[int, int]
    platform: str  # sys.platform and machine, "linux x86_64"
    levels: tuple[str, ...]  # instruction-set levels this processor runs, best first
    families: tuple[str, ...]  # kernel modules installed for the best level
    module_error: str  # why a kernel module cannot be loaded, or ""
    slots_taken: tuple[int, ...]  # slots of the address space that cannot be had
    address_limit: int  # RLIMIT_AS, -1 for none
    descriptors: int  # hard limit of open files
    available: int  # bytes of memory
    home_error: str  # why keys cannot be kept, or ""
    disk_free: int  # bytes where keys and caches lie
    cuda: str  # what opening the CUDA driver said
    torch: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """One probe's answer. ``ok`` None: for information, nothing depends on it."""

    probe: str
    ok: bool | None
    found: str
    hint: str = ""


def look() -> Facts:
    """Gathers the facts. Opens a host device and closes it again."""
    levels = tuple(_native.host_levels())
    home, home_error = keys_folder()
    return Facts(
        python=sys.version_info[:2],
        platform=f"{sys.platform} {os.uname().machine}",
        levels=levels,
        families=tuple(host.families(levels[0])) if levels else (),
        module_error=module_error(),
        slots_taken=slots_taken(),
        address_limit=resource.getrlimit(resource.RLIMIT_AS)[0],
        descriptors=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        available=available_bytes(),
        home_error=home_error,
        disk_free=shutil.disk_usage(home).free,
        cuda=cuda(),
        torch=util.find_spec("torch") is not None,
    )


def module_error() -> str:
    try:
        image = host.kernel_image(host.best_level(), "probe")
        modules.load_module(host.open_host(workers=1), blake3(image).hexdigest(), image)
    except errors.DeviceError as error:
        return f"{error.doing}: {error.found}"
    return ""


def slots_taken() -> tuple[int, ...]:
    taken = []
    device = host.open_host(workers=1)
    for slot in range(SLOTS):
        try:
            device.reserve(region_base(slot, "weights"), region_span("weights")).close()
        except (errors.AddressTakenError, errors.OutOfMemoryError):  # the second where address space is limited
            taken.append(slot)
    device.close()
    return tuple(taken)


def keys_folder() -> tuple[Path, str]:
    """What there is of the way to the folder of keys, and why keys cannot be kept in it, or an empty string."""
    try:
        path = home_folder().absolute()
    except errors.StorageError as error:
        return Path.cwd(), error.found
    folder = next(folder for folder in (path, *path.parents) if os.path.exists(folder))  # False where it may not look
    return folder, "" if os.access(folder, os.W_OK) else f"{folder} cannot be written"


def cuda() -> str:
    try:
        device = _native.CudaDevice(0)
        return f"{device.name}, {device.arch}, {device.processors} processors, driver {device.driver_version}"
    except errors.DeviceError as error:
        return error.found


def judge(facts: Facts) -> list[Finding]:
    """Every probe's answer for a facts."""
    return [probe(facts) for probe in PROBES]


def probe_python(facts: Facts) -> Finding:
    version = ".".join(map(str, facts.python))
    return Finding("python", facts.python >= (3, 11), version, "use Python 3.11 or newer")


def probe_platform(facts: Facts) -> Finding:
    ok = facts.platform in {"linux x86_64", "linux aarch64"}
    return Finding(
        "platform",
        ok,
        facts.platform,
        "capture and replay need Linux on x86-64 or aarch64; inspect and verify work here",
    )


def probe_instructions(facts: Facts) -> Finding:
    return Finding(
        "instruction set",
        bool(facts.levels),
        ", ".join(facts.levels) or "none",
        "no host kernels were built for this processor",
    )


def probe_kernels(facts: Facts) -> Finding:
    found = f"{len(facts.families)} kernel modules for {facts.levels[0]}" if facts.levels else "none"
    return Finding("host kernels", bool(facts.families), found, "reinstall with HELIOGRAPH_HOST_KERNELS=ON")


def probe_modules(facts: Facts) -> Finding:
    return Finding(
        "kernel loading",
        not facts.module_error,
        facts.module_error or "a module was sealed, loaded and closed",
        "allow executable memfds or mount a cache folder without noexec",
    )


def probe_addresses(facts: Facts) -> Finding:
    found = f"{SLOTS - len(facts.slots_taken)} of {SLOTS} slots free"
    return Finding(
        "address space",
        len(facts.slots_taken) < SLOTS,
        found,
        "start without preloaded libraries that map memory at fixed addresses, and without a limit on address space",
    )


def probe_address_limit(facts: Facts) -> Finding:
    needed = sum(region_span(role) for role in ("weights", "constants", "persistent", "io", "scratch", "state"))
    ok = facts.address_limit < 0 or facts.address_limit > needed
    found = "none" if facts.address_limit < 0 else f"{facts.address_limit} bytes"
    return Finding("address-space limit", ok, found, "raise it: ulimit -v unlimited")


def probe_descriptors(facts: Facts) -> Finding:
    return Finding(
        "open files",
        facts.descriptors >= 256,
        f"{facts.descriptors} at most",
        "raise the hard limit (ulimit -Hn); each kernel module costs one",
    )


def probe_memory(facts: Facts) -> Finding:
    return Finding(
        "memory",
        facts.available >= 256 << 20,
        f"{facts.available >> 20} MiB available",
        "free memory or raise the control group's limit",
    )


def probe_home(facts: Facts) -> Finding:
    return Finding(
        "keys",
        not facts.home_error,
        facts.home_error or "folder can be written",
        "set HELIOGRAPH_HOME to a folder that can be written",
    )


def probe_disk(facts: Facts) -> Finding:
    return Finding("disk", facts.disk_free >= 64 << 20, f"{facts.disk_free >> 20} MiB free", "free disk space")


def probe_cuda(facts: Facts) -> Finding:
    return Finding("cuda", None, facts.cuda)


def probe_torch(facts: Facts) -> Finding:
    return Finding(
        "torch",
        None,
        "installed: this machine can capture" if facts.torch else "not installed: this machine can serve, not capture",
    )


PROBES: tuple[Callable[[Facts], Finding], ...] = (
    probe_python, probe_platform, probe_instructions, probe_kernels, probe_modules, probe_addresses,
    probe_address_limit, probe_descriptors, probe_memory, probe_home, probe_disk, probe_cuda, probe_torch,
)  # fmt: skip


def fits(verified: VerifiedCore, index: int = 0) -> dict[str, Any]:
    """Whether a core fits this machine now, and how many units of state (KV blocks, so tokens) would. ``index``: of the
    CUDA device, where the core is for one."""
    core = verified.core
    if core.target.device == "host":
        return fit(core, available_bytes())
    try:
        device = open_device(core.target.device, index=index)
    except errors.DeviceError as error:
        return fit(core, 0) | {"reason": f"{error.doing}: {error.found}"}
    try:
        return fit(core, device.free_bytes or 0, device)
    finally:
        device.close()


def fit(core: manifest.Core, budget: int, device: _native.Device | None = None) -> dict[str, Any]:
    """The plan of a load that may use ``budget`` bytes and gives units all that is left; left out, ``device`` is this
    host. Units it has none if even the least that a load needs does not fit."""
    reason, units = misfit(core, this_host() if device is None else machine_of(device)), 0
    unit = PAGESIZE if device is None else device.granularity
    taken = overhead(device, core, 0) if isinstance(device, _native.CudaDevice) else NO_OVERHEAD
    try:
        units = plan_memory(core, budget=budget, granularity=unit, fill=True, overhead=taken).units
    except errors.OutOfMemoryError as error:
        reason = reason or f"{error.found}; required {error.required}"
    return {
        "ok": not reason,
        "reason": reason,
        "fixed_bytes": fixed_bytes(core, unit),
        "units": units,
        "tokens": units * core.text.block_tokens if core.text else 0,
    }


def misfit(core: manifest.Core, machine: Machine) -> str:
    """Why a core's target is not this machine, or an empty string."""
    try:
        check_target(core.target, machine)
    except errors.TargetError as error:
        return f"{error.found}; required {error.required}"
    return ""
