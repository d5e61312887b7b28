"""Nothing is freed under a running launch, whatever is dropped, closed or forked first."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from heliograph._native import Executable, HostDevice
from heliograph.errors import GraphStateError, HeliographError, UsageError

from .probe import Probe, folded, pack

SLOW = 60_000  # microseconds


def slow_executable(probe: Probe, cell: int) -> Executable:
    """Spins, then adds 1 to the cell."""
    template = probe.device.create_template()
    probe.add(template, "spin", cell, SLOW)
    return template.instantiate()


def test_dropping_an_executable_waits_for_its_launches(probe: Probe) -> None:
    cell = probe.take()
    stream = probe.device.create_stream()
    executable = slow_executable(probe, cell)
    executable.launch(stream)
    executable.launch(stream)
    del executable
    gc.collect()
    assert probe.word(cell) == 2
    assert probe.counter("executables_live") == 0


def test_closing_an_executable_waits_and_refuses_later_use(probe: Probe) -> None:
    cell = probe.take()
    stream = probe.device.create_stream()
    executable = slow_executable(probe, cell)
    executable.launch(stream)
    executable.close()
    assert probe.word(cell) == 1
    executable.close()
    with pytest.raises(GraphStateError):
        executable.launch(stream)
    with pytest.raises(GraphStateError):
        executable.drain()
    assert probe.counter("launches") == 1


def test_closing_lets_other_threads_run(probe: Probe) -> None:
    cell = probe.take()
    executable = slow_executable(probe, cell)
    executable.launch(probe.device.create_stream())
    ticks: list[float] = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    executable.close()
    stop.set()
    thread.join()
    assert len(ticks) > 3


def test_in_flight_counts_launches_that_are_not_finished(probe: Probe) -> None:
    cell = probe.take()
    executable = slow_executable(probe, cell)
    for _ in range(3):
        executable.launch(probe.device.create_stream())
    assert executable.in_flight > 0
    executable.drain()
    assert (executable.in_flight, probe.word(cell)) == (0, 3)
    executable.close()


def test_a_closed_device_refuses_use(probe: Probe) -> None:
    device = probe.device
    assert device.alive
    probe.memory.close()
    device.close()
    device.close()
    assert not device.alive
    for refused in (device.create_stream, device.create_template, lambda: device.reserve(1 << 44, 1 << 21)):
        with pytest.raises(HeliographError):
            refused()


def test_closing_a_device_waits_for_its_work() -> None:
    probe = Probe(HostDevice(workers=2))
    cell = probe.take()
    stream = probe.device.create_stream()
    for _ in range(3):
        probe.launch(stream, "spin", cell, SLOW)
    probe.device.close()
    assert probe.word(cell) == 3
    with pytest.raises(UsageError):
        probe.launch(stream, "spin", cell, SLOW)
    assert stream.query()
    probe.close()


def test_what_a_module_gave_keeps_it_loaded(probe: Probe) -> None:
    """The executable holds the functions of its nodes, these hold their module."""
    cell = probe.take()
    template = probe.device.create_template()
    template.add_kernel(probe.function("fold"), (1, 1, 1), pack(cell, 4))
    executable = template.instantiate()
    template.close()
    probe.module = None
    gc.collect()
    assert probe.counter("modules_live") == 1
    probe.run(executable)
    assert probe.word(cell) == folded(0, 4)
    executable.close()
    del executable, template
    gc.collect()
    assert probe.counter("modules_live") == 0


def test_memory_is_not_unmapped_under_running_work() -> None:
    probe = Probe(HostDevice(workers=2))
    cell = probe.take()
    stream = probe.device.create_stream()
    probe.launch(stream, "spin", cell, SLOW)  # then writes its cell: a fault if the cell were gone
    probe.memory.close()
    assert stream.query()
    probe.close()


# ---- processes of their own ----------------------------------------------------------------------------------------
PREAMBLE = f"""
import gc, os, sys, threading, time
sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
from heliograph._native import HostDevice
from heliograph.errors import UsageError
from conformance.probe import Probe
probe = Probe(HostDevice(workers=2))
cell = probe.take()
template = probe.device.create_template()
probe.add(template, "spin", cell, 100_000)
executable = template.instantiate()
stream = probe.device.create_stream()
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    """From Python 3.12 on a fork beside other threads is warned of; here it is what is tested."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PREAMBLE + script]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_an_executable_is_not_freed_under_its_launches() -> None:
    """In a process of its own: workers that run on freed memory do anything."""
    done = run("""
for _ in range(2):
    executable.launch(stream)
del executable
print(probe.word(cell), flush=True)
os._exit(0)
""")
    assert (done.returncode, done.stdout) == (0, "2\n")


@pytest.mark.parametrize(
    "end",
    [
        "",
        "sys.exit(0)",
        "del probe.memory",
        "probe.memory.close()",
        "del probe, executable, stream, template",
        "del stream; gc.collect()",
        "sys.held = [probe, executable, stream]",
    ],
    ids=["fall off", "exit", "memory dropped", "memory closed", "all dropped", "stream dropped", "held for ever"],
)
def test_the_interpreter_ends_cleanly_with_work_in_flight(end: str) -> None:
    done = run(f"[executable.launch(stream) for _ in range(3)]\n{end}\n")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_interpreter_ends_cleanly_while_a_daemon_thread_launches() -> None:
    done = run("""
def forever():
    while True:
        executable.launch(stream)
        time.sleep(0.01)
threading.Thread(target=forever, daemon=True).start()
time.sleep(0.2)
""")
    assert done.returncode == 0
    assert "Fatal" not in done.stderr


FORKED = """
executable.launch(stream)
time.sleep({since})
child = os.fork()
if child == 0:
    try:
        {use}
    except UsageError as refused:
        os.write(1, refused.hint.encode())
        {end}
    os._exit(9)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
stream.synchronize()
assert probe.word(cell) == 1
"""


@pytest.mark.parametrize(
    "use",
    [
        "executable.launch(stream)",
        "stream.synchronize()",
        "executable.drain()",
        "probe.device.create_stream()",
        "probe.device.synchronize()",
        "template.instantiate()",
    ],
)
def test_use_after_fork_is_refused_and_the_parent_goes_on(use: str) -> None:
    done = run(FORKED.format(since=0, use=use, end="os._exit(7)"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "fork" in done.stdout


@pytest.mark.parametrize("since", [0, 0.3], ids=["at work", "idle"])
def test_a_forked_child_ends_cleanly_and_may_open_its_own_device(since: float) -> None:
    """Also when the workers wait for work, in which the child cannot destroy what they wait for."""
    done = run(
        FORKED.format(
            since=since,
            use="stream.synchronize()",
            end="""
        del executable, stream, template, probe
        gc.collect()
        own = Probe(HostDevice(workers=2), base=0x1701_0000_0000)
        mine = own.take()
        one = own.device.create_stream()
        own.launch(one, "count", mine, blocks=5)
        one.synchronize()
        assert own.word(mine) == 5
        sys.exit(7)""",
        )
    )
    assert (done.returncode, done.stderr) == (0, "")
