"""How much memory a load may use: what its device has, and on the host what the control group and the machine have."""

from __future__ import annotations

from pathlib import Path

from heliograph._native import Device


def memory_budget(device: Device, stated: int | None = None) -> int:
    """Bytes that may be used on a device now; ``stated`` is what the caller wants to use at most."""
    limits = [stated, device.free_bytes]
    if device.kind == "host":
        limits.append(available_bytes())
    return min(limit for limit in limits if limit is not None)


def available_bytes(root: Path = Path("/")) -> int:
    """Bytes that can be taken now. ``root`` is where ``/proc`` and ``/sys`` are found, for tests."""
    available = available_memory((root / "proc/meminfo").read_text(encoding="ascii"))
    limits = [_room(folder) for folder in _groups(root)]
    return min([available, *(room for room in limits if room is not None)])


def available_memory(meminfo: str) -> int:
    """``MemAvailable`` of ``/proc/meminfo`` in bytes: free memory and what the kernel can give back at once."""
    for line in meminfo.splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return 0


def _groups(root: Path) -> list[Path]:
    """The folders of this process's memory control group and of all its ancestors; a limit of any of them holds.

    In a container the path is that of the host while the mount shows the container's own group as the root, so
    folders that are not there are passed over.
    """
    folders: list[Path] = []
    listing = root / "proc/self/cgroup"
    if not listing.exists():
        return folders
    for line in listing.read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top = root / "sys/fs/cgroup"
        elif "memory" in controllers.split(","):
            top = root / "sys/fs/cgroup/memory"
        else:
            continue
        group = top / path.lstrip("/")
        folders += [folder for folder in (group, *group.parents) if folder == top or top in folder.parents]
    return [folder for folder in folders if folder.is_dir()]


def _room(folder: Path) -> int | None:
    """Bytes left below a group's limit; None without one. File pages that the kernel can drop count as left."""
    for limit_name, usage_name, inactive in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit = _number(folder / limit_name)
        usage = _number(folder / usage_name)
        if limit is not None and usage is not None:
            return max(0, limit - max(0, usage - _statistic(folder / "memory.stat", inactive)))
    return None


def _number(path: Path) -> int | None:
    if not path.exists():
        return None
    text = path.read_text(encoding="ascii").strip()
    return None if text == "max" else int(text)


def _statistic(path: Path, name: str) -> int:
    if not path.exists():
        return 0
    for line in path.read_text(encoding="ascii").splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
