"""How much memory may be used: the smallest of all limits that hold for this process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from heliograph._native import Device
from heliograph.device.host import open_host
from heliograph.runtime.budget import available_bytes, available_memory, memory_budget

MIB = 1 << 20
MEMINFO = "MemTotal:       2048000 kB\nMemFree:         100000 kB\nMemAvailable:   1024000 kB\n"


def machine(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    for path, text in {"proc/meminfo": MEMINFO, "proc/self/cgroup": cgroup, **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def test_without_groups_the_available_memory_decides(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    assert available_bytes(tmp_path) == 1024000 * 1024 == available_memory(MEMINFO)


@pytest.mark.parametrize(
    ("cgroup", "folder", "limit", "usage", "inactive"),
    [
        ("0::/app/one\n", "sys/fs/cgroup/app/one", "memory.max", "memory.current", "inactive_file"),
        (
            "5:cpu:/\n4:memory:/app\n",
            "sys/fs/cgroup/memory/app",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file",
        ),
    ],
    ids=["v2", "v1"],
)
def test_a_groups_limit_less_its_use_decides(
    tmp_path: Path, cgroup: str, folder: str, limit: str, usage: str, inactive: str
) -> None:
    files = {
        f"{folder}/{limit}": f"{100 * MIB}\n",
        f"{folder}/{usage}": f"{30 * MIB}\n",
        f"{folder}/memory.stat": f"anon 5\n{inactive} {10 * MIB}\n",
    }
    assert available_bytes(machine(tmp_path, cgroup, files)) == 80 * MIB


def test_the_limit_of_an_ancestor_holds(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/app/memory.max": f"{64 * MIB}",
        "sys/fs/cgroup/app/memory.current": "0",
        "sys/fs/cgroup/app/one/memory.max": "max",
        "sys/fs/cgroup/app/one/memory.current": "0",
    }
    assert available_bytes(machine(tmp_path, "0::/app/one\n", files)) == 64 * MIB


def test_in_a_container_the_root_of_the_mount_is_its_group(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/memory.max": f"{32 * MIB}", "sys/fs/cgroup/memory.current": f"{2 * MIB}"}
    assert available_bytes(machine(tmp_path, "0::/kubepods/pod7\n", files)) == 30 * MIB


def test_a_group_over_its_limit_has_nothing_left(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/memory.max": "10", "sys/fs/cgroup/memory.current": "20"}
    assert available_bytes(machine(tmp_path, "0::/\n", files)) == 0


def test_this_machine_has_memory() -> None:
    assert available_bytes() > 0


def test_a_load_uses_no_more_than_its_device_has_left() -> None:
    device = open_host(workers=1, memory_limit=MIB)
    assert memory_budget(device) == MIB
    assert memory_budget(device, 2 * MIB) == MIB
    assert memory_budget(device, MIB // 2) == MIB // 2
    device.close()


def test_on_a_host_device_without_a_limit_nobody_gets_more_than_the_process_may_take() -> None:
    device = open_host(workers=1)
    assert MIB < memory_budget(device) < 1 << 60
    assert MIB < memory_budget(device, 1 << 60) < 1 << 60
    assert memory_budget(device, MIB) == MIB
    device.close()


def test_what_the_host_has_left_is_no_limit_of_another_device() -> None:
    device = cast(Device, SimpleNamespace(kind="cuda", free_bytes=1 << 60))
    assert memory_budget(device) == 1 << 60
    assert memory_budget(device, MIB) == MIB
