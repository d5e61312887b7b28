"""Opening the host device: workers, CPU sets and quotas."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from heliograph._native import host_levels
from heliograph.device.host import open_host, usable_processors
from heliograph.errors import OutOfMemoryError, UsageError


def threads() -> dict[str, set[int]]:
    """The names of the workers of this process and the processors they may use."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        name = (task / "comm").read_text().strip()
        if name.startswith("hg-"):
            found[name] = os.sched_getaffinity(int(task.name))
    return found


def expect_threads(expected: dict[str, set[int]]) -> None:
    """A thread names and places itself when it starts."""
    end = time.monotonic() + 10
    while threads() != expected and time.monotonic() < end:
        time.sleep(0.01)
    assert threads() == expected


def test_the_host_device_describes_itself() -> None:
    device = open_host()
    assert (device.kind, device.arch, device.alive) == ("host", host_levels()[0], True)
    assert device.granularity == os.sysconf("SC_PAGESIZE")
    assert set(device.counters().values()) == {0}
    device.close()
    assert not device.alive


def test_workers_are_the_processors_of_the_process_unless_stated() -> None:
    assert open_host().workers == usable_processors()
    assert open_host(cpus=[0]).workers == 1
    assert open_host(workers=3).workers == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [("max 100000", None), ("100000 100000", 1), ("150000 100000", 1), ("50000 100000", 1), ("broken", None)],
)
def test_a_quota_limits_the_workers(tmp_path: Path, text: str, expected: int | None) -> None:
    quota = tmp_path / "cpu.max"
    quota.write_text(text + "\n")
    assert usable_processors(quota) == (expected or len(os.sched_getaffinity(0)))
    assert usable_processors(tmp_path / "missing") == len(os.sched_getaffinity(0))


def test_each_worker_has_its_own_cpu_where_there_are_enough() -> None:
    cpus = sorted(os.sched_getaffinity(0))[:2]
    device = open_host(workers=len(cpus), cpus=cpus)
    streams = [device.create_stream() for _ in range(2)]
    workers = {f"hg-worker-{i}": {cpus[i]} for i in range(1, len(cpus))}
    expect_threads({"hg-stream-0": {cpus[0]}, "hg-stream-1": set(cpus), **workers})
    del streams
    device.close()
    expect_threads({})


def test_workers_share_the_cpus_where_there_are_fewer() -> None:
    device = open_host(workers=4, cpus=[0])
    stream = device.create_stream()
    expect_threads({name: {0} for name in ("hg-stream-0", "hg-worker-1", "hg-worker-2", "hg-worker-3")})
    del stream
    device.close()


def test_an_idle_device_uses_no_processor_time() -> None:
    device = open_host(workers=2)
    stream = device.create_stream()
    template = device.create_template()
    template.add_empty()
    executable = template.instantiate()
    executable.launch(stream)
    stream.synchronize()

    def used() -> float:
        tasks = [task for task in Path("/proc/self/task").iterdir() if (task / "comm").read_text().startswith("hg-")]
        fields = [(task / "stat").read_text().rpartition(")")[2].split() for task in tasks]
        return sum(int(field[11]) + int(field[12]) for field in fields) / os.sysconf("SC_CLK_TCK")

    before = used()
    time.sleep(0.5)
    assert used() - before <= 0.02
    executable.close()
    device.close()


def test_a_stated_memory_limit_reaches_the_device() -> None:
    device = open_host(workers=1, memory_limit=4096)
    reservation = device.reserve(0x1601_0000_0000, 1 << 20)
    with pytest.raises(OutOfMemoryError):
        reservation.map(0, 8192)
    reservation.map(0, 4096)
    reservation.close()


def test_a_status_file_shows_what_runs() -> None:
    descriptor = os.memfd_create("status")
    os.ftruncate(descriptor, 4096)
    device = open_host(workers=1, status=descriptor)
    assert os.pread(descriptor, 8, 0) == b"HGTATUS1"
    device.close()
    os.close(descriptor)


def test_too_many_workers_are_refused() -> None:
    with pytest.raises(UsageError):
        open_host(workers=2000)
