"""A fault, a kill or a hang leaves the signal, launch and node behind in the status page; the process dies of it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from heliograph._native import HostDevice, read_fault, read_running
from heliograph.errors import FormatError, UsageError

from .probe import Probe, pack

PAGE = 4096
TESTS = str(Path(__file__).parent.parent)
PREAMBLE = """
import os, sys
sys.path.insert(0, {tests!r})
from heliograph._native import HostDevice
from conformance.probe import Probe, pack
probe = Probe(HostDevice(workers={workers}, status_fd={status}))
counter, flag = probe.take(), probe.take()
stream = probe.device.create_stream()
def graph(name, *values, before=6, blocks=1):
    template, last = probe.device.create_template(), []
    for _ in range(before):
        last = [probe.add(template, "count", counter, blocks=4, after=last)]
    probe.add(template, name, *values, blocks=blocks, after=last)
    return template.instantiate()
"""


@pytest.fixture
def status() -> int:
    """A shared page of memory, as a supervisor makes it."""
    descriptor = os.memfd_create("status")
    os.ftruncate(descriptor, PAGE)
    yield descriptor
    os.close(descriptor)


def start(script: str, status: int, workers: int = 2) -> subprocess.Popen[str]:
    text = PREAMBLE.format(tests=TESTS, workers=workers, status=status) + script
    return subprocess.Popen(
        [sys.executable, "-c", text], pass_fds=[status], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def die(script: str, status: int, workers: int = 2) -> int:
    """The signal that the process died of."""
    process = start(script, status, workers)
    _, errors = process.communicate(timeout=60)
    assert process.returncode < 0, errors
    return -process.returncode


def page(status: int) -> bytes:
    return os.pread(status, PAGE, 0)


KINDS = [
    (0, signal.SIGSEGV, 0x1601_3000_0000),  # inside the reservation, not mapped
    (1, signal.SIGILL, None),
    (2, signal.SIGFPE, None),
]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("kind", "expected", "address"), KINDS, ids=["SIGSEGV", "SIGILL", "SIGFPE"])
def test_a_kernel_that_faults_is_named(
    status: int, workers: int, kind: int, expected: signal.Signals, address: int | None
) -> None:
    script = f"""
good, bad = graph("count", counter), graph("fault", {address or 0}, {kind}, before=5)
for executable in (good, good, good, bad, good):
    executable.launch(stream)
stream.synchronize()
"""
    assert die(script, status, workers) == expected
    fault = read_fault(page(status))
    assert fault is not None
    assert (fault["signal"], fault["launch"], fault["node"]) == (expected, 3, 5)
    if address is not None:
        assert fault["address"] == address
    assert {"worker": fault["worker"], "launch": 3, "node": 5} in read_running(page(status))


def test_a_bus_error_is_named(status: int) -> None:
    script = """
import mmap, tempfile, ctypes
with tempfile.TemporaryFile() as file:
    file.truncate(4096)
    mapping = mmap.mmap(file.fileno(), 4096)
    file.truncate(0)
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    graph("fault", address, 0, before=2).launch(stream)
    stream.synchronize()
"""
    assert die(script, status) == signal.SIGBUS
    fault = read_fault(page(status))
    assert fault is not None
    assert (fault["signal"], fault["launch"], fault["node"]) == (signal.SIGBUS, 0, 2)


def test_a_planted_fault_hits_its_node_of_its_launch(status: int) -> None:
    script = """
executable = graph("count", counter)
executable.launch(stream)
stream.synchronize()
probe.device.inject_fault(launch=2, node=4)
for _ in range(2):
    executable.launch(stream)
stream.synchronize()
os.write(1, str(probe.word(counter)).encode())
executable.launch(stream)
stream.synchronize()
"""
    process = start(script, status)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGSEGV, errors
    assert out == str(3 * 25)
    fault = read_fault(page(status))
    assert fault is not None
    assert (fault["signal"], fault["launch"], fault["node"]) == (signal.SIGSEGV, 3, 4)


def test_a_planted_fault_needs_a_node_that_runs() -> None:
    probe = Probe(HostDevice(workers=1))
    template = probe.device.create_template()
    template.add_empty()
    probe.add(template, "count", probe.take(), after=[0])
    executable, stream = template.instantiate(), probe.device.create_stream()
    for node in (0, 2):
        probe.device.inject_fault(0, node)
        with pytest.raises(UsageError):
            executable.launch(stream)
    executable.launch(stream)
    executable.close()
    probe.close()


def test_a_kernel_outside_any_graph_is_named_as_such(status: int) -> None:
    script = """
probe.launch(stream, "fault", 0, 1)
stream.synchronize()
"""
    assert die(script, status) == signal.SIGILL
    fault = read_fault(page(status))
    assert fault is not None
    assert fault["node"] == -1


def until(condition, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


HANG = """
graph("count", counter).launch(stream)
graph("gate", flag, counter, before=6, blocks=1).launch(stream)
stream.synchronize()
"""


def test_a_hang_shows_the_node_that_does_not_end(status: int) -> None:
    process = start(HANG, status)
    until(lambda: os.pread(status, 8, 0) != bytes(8) and read_running(page(status)))
    until(lambda: [it["node"] for it in read_running(page(status))] == [6])
    time.sleep(0.2)
    assert [(it["launch"], it["node"]) for it in read_running(page(status))] == [(1, 6)]
    process.kill()
    process.communicate()
    assert [(it["launch"], it["node"]) for it in read_running(page(status))] == [(1, 6)]
    assert read_fault(page(status)) is None


def test_an_idle_device_shows_nothing_running(status: int) -> None:
    device = HostDevice(workers=2, status_fd=status)
    probe = Probe(device)
    template = device.create_template()
    probe.add(template, "count", probe.take(), blocks=100)
    executable = template.instantiate()
    probe.run(executable, times=10)
    assert read_running(page(status)) == []
    assert read_fault(page(status)) is None
    executable.close()
    probe.close()


def test_a_fault_outside_a_kernel_goes_to_the_handler_that_was_there(status: int) -> None:
    script = """
import faulthandler, ctypes
ctypes.string_at(0)
"""
    text = (
        "import faulthandler; faulthandler.enable()\n" + PREAMBLE.format(tests=TESTS, workers=2, status=status) + script
    )
    done = subprocess.run([sys.executable, "-c", text], pass_fds=[status], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGSEGV
    assert "Segmentation fault" in done.stderr
    assert "string_at" in done.stderr
    assert read_fault(page(status)) is None


def test_a_handler_installed_later_passes_the_fault_on(status: int) -> None:
    script = """
import faulthandler
faulthandler.enable()
graph("fault", 0x160130000000, 0, before=3).launch(stream)
stream.synchronize()
"""
    assert die(script, status) == signal.SIGSEGV
    fault = read_fault(page(status))
    assert fault is not None
    assert (fault["signal"], fault["launch"], fault["node"], fault["address"]) == (signal.SIGSEGV, 0, 3, 0)


def test_a_signal_that_was_sent_is_no_fault_of_a_kernel(status: int) -> None:
    process = start("print('ready', flush=True); sys.stdin.read() if False else __import__('time').sleep(60)", status)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGSEGV)
    process.communicate(timeout=20)
    assert process.returncode == -signal.SIGSEGV
    assert read_fault(page(status)) is None


def test_a_status_file_that_is_too_small_is_refused() -> None:
    descriptor = os.memfd_create("status")
    for size, good in [(0, False), (4095, False), (4096, True)]:
        os.ftruncate(descriptor, size)
        if good:
            HostDevice(workers=2, status_fd=descriptor).close()
        else:
            with pytest.raises(UsageError):
                HostDevice(workers=2, status_fd=descriptor)
    os.close(descriptor)


def test_more_workers_than_the_status_file_has_slots_are_refused() -> None:
    descriptor = os.memfd_create("status")
    os.ftruncate(descriptor, 4096)  # 62 slots
    with pytest.raises(UsageError):
        HostDevice(workers=64, status_fd=descriptor)
    os.ftruncate(descriptor, 8192)
    HostDevice(workers=64, status_fd=descriptor).close()
    os.close(descriptor)


def test_bytes_that_are_no_status_page_are_refused() -> None:
    for data in (b"", bytes(PAGE), b"\xff" * PAGE, b"HGTATUS1" * 16):
        with pytest.raises(FormatError):
            read_fault(data)
        with pytest.raises(FormatError):
            read_running(data)


def test_workers_leave_signals_to_the_main_thread() -> None:
    """SIGINT during a kernel interrupts Python, not a worker."""
    probe = Probe(HostDevice(workers=2))
    stream = probe.device.create_stream()
    probe.launch(stream, "spin", probe.take(), 300_000)
    libc = ctypes.CDLL(None)
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    try:
        libc.kill(os.getpid(), signal.SIGUSR1)
        until(lambda: bool(seen), seconds=5)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not stream.query()
    probe.close()


def test_parameters_are_copied_at_submission() -> None:
    probe = Probe(HostDevice(workers=1))
    cell = probe.take()
    params = bytearray(pack(cell, 7))
    stream = probe.device.create_stream()
    probe.launch(stream, "spin", probe.take(), 20_000)
    stream.launch(probe.function("fold"), (1, 1, 1), params)
    params[:] = bytes(16)
    stream.synchronize()
    assert probe.word(cell) == 7
    probe.close()
