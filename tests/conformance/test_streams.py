"""Streams are ordered, events order them, and no stream waits for another without one."""

from __future__ import annotations

import threading
import time

import pytest

from heliograph._native import HostDevice
from heliograph.errors import UsageError

from .probe import BASE, Probe, folded


def test_work_of_one_stream_runs_in_order(probe: Probe) -> None:
    cell = probe.take()
    stream = probe.device.create_stream()
    for value in range(1, 201):
        probe.launch(stream, "fold", cell, value)
    stream.synchronize()
    assert probe.word(cell) == folded(0, *range(1, 201))
    assert stream.query()


def test_events_order_two_streams(probe: Probe) -> None:
    cell, counter = probe.take(), probe.take()
    a, b = probe.device.create_stream(), probe.device.create_stream()
    expected = 0
    for value in range(1, 21):
        to_b, to_a = probe.device.create_event(), probe.device.create_event()
        probe.launch(a, "spin", counter, 300)
        probe.launch(a, "fold", cell, value)
        a.record(to_b)
        b.wait(to_b)
        probe.launch(b, "fold", cell, 1000 + value)
        b.record(to_a)
        a.wait(to_a)
        expected = folded(expected, value, 1000 + value)
    probe.device.synchronize()
    assert probe.word(cell) == expected


def test_a_wait_is_for_the_last_record_before_it(probe: Probe) -> None:
    a, b = probe.device.create_stream(), probe.device.create_stream()
    counter, cell = probe.take(), probe.take()
    event = probe.device.create_event()
    b.wait(event)  # never recorded: nothing to wait for
    probe.launch(b, "fold", cell, 1)
    b.synchronize()
    probe.launch(a, "spin", counter, 20_000)
    a.record(event)
    b.wait(event)
    probe.launch(a, "spin", counter, 20_000)
    a.record(event)
    probe.launch(b, "fold", cell, 2)
    b.synchronize()
    assert probe.word(counter) >= 1
    event.synchronize()
    assert (probe.word(counter), event.query()) == (2, True)


def test_an_event_is_done_when_the_work_before_it_is(probe: Probe) -> None:
    stream, counter = probe.device.create_stream(), probe.take()
    event = probe.device.create_event()
    assert event.query()
    probe.launch(stream, "spin", counter, 200_000)
    stream.record(event)
    assert not event.query()
    assert not stream.query()
    event.synchronize()
    assert event.query()
    assert probe.word(counter) == 1


def test_copies_and_memsets_run_in_stream_order(probe: Probe) -> None:
    a, b = probe.take(1 << 20), probe.take(1 << 20)
    stream = probe.device.create_stream()
    stream.memset(a, 0x11, 1 << 20)
    stream.memcpy(b, a, 1 << 20)
    stream.memset(a, 0x22, 1 << 20)
    stream.synchronize()
    assert probe.read(b, 1 << 20) == b"\x11" * (1 << 20)
    assert probe.read(a, 1 << 20) == b"\x22" * (1 << 20)


def test_launches_of_one_executable_never_overlap(probe: Probe) -> None:
    """Launches of one graph share its memory, so they take turns also when they come from several streams."""
    cell, counter = probe.take(), probe.take()
    template = probe.device.create_template()
    last = [probe.add(template, "fold", cell, 1)]
    last = [probe.add(template, "spin", counter, 100, after=last)]
    probe.add(template, "fold", cell, 2, after=last)
    executable = template.instantiate()
    streams = [probe.device.create_stream() for _ in range(4)]
    for _ in range(10):
        for stream in streams:
            executable.launch(stream)
    probe.device.synchronize()
    assert probe.word(cell) == folded(0, *[1, 2] * 40)
    executable.close()


def test_several_threads_launch_at_once(probe: Probe) -> None:
    cells = [probe.take() for _ in range(4)]
    executables = []
    for cell in cells:
        template = probe.device.create_template()
        probe.add(template, "count", cell, blocks=3)
        executables.append(template.instantiate())

    def work(number: int) -> None:
        stream = probe.device.create_stream()
        for _ in range(100):
            executables[number].launch(stream)
            executables[(number + 1) % 4].launch(stream)
        stream.synchronize()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [probe.word(cell) for cell in cells] == [600] * 4
    for executable in executables:
        executable.close()


def test_drain_returns_while_other_threads_go_on_launching(probe: Probe) -> None:
    cell = probe.take()
    template = probe.device.create_template()
    probe.add(template, "count", cell)
    executable = template.instantiate()
    stop = threading.Event()
    launched = [0, 0]

    def work(number: int) -> None:
        stream = probe.device.create_stream()
        while not stop.is_set():
            executable.launch(stream)
            launched[number] += 1
            if launched[number] % 64 == 0:
                stream.synchronize()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        before = sum(launched)
        executable.drain()
        assert probe.word(cell) >= before - 2  # one launch a thread may not be counted as submitted yet
    stop.set()
    for thread in threads:
        thread.join()
    executable.drain()
    assert (executable.in_flight, probe.word(cell)) == (0, sum(launched))
    executable.close()


def test_waiting_for_a_device_lets_other_threads_run(probe: Probe) -> None:
    stream, counter = probe.device.create_stream(), probe.take()
    ticks = 0
    done = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.is_set():
            ticks += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    probe.launch(stream, "spin", counter, 200_000)
    before = ticks
    stream.synchronize()
    passed = ticks - before
    done.set()
    thread.join()
    assert passed > 10


def test_a_stream_makes_progress_while_another_is_blocked(probe: Probe) -> None:
    flag, counter = probe.take(), probe.take()
    blocked, free = probe.device.create_stream(), probe.device.create_stream()
    probe.function("write")  # is loaded, which on a GPU waits until nothing runs
    probe.launch(blocked, "gate", flag, counter, blocks=8)  # ends when the other stream has written the flag
    probe.launch(free, "write", flag, 1)
    probe.device.synchronize()
    assert probe.word(counter) == 8


def test_submitting_waits_while_a_stream_has_too_much_to_do() -> None:
    """A bound on the queue: a thread that submits faster than the device works is slowed down, memory does not grow."""
    probe = Probe(HostDevice(workers=1))
    flag, counter = probe.take(), probe.take()
    stream = probe.device.create_stream()
    probe.launch(stream, "gate", flag, counter)
    submitted = 0

    def submit() -> None:
        nonlocal submitted
        for _ in range(3000):
            probe.launch(stream, "count", counter)
            submitted += 1

    thread = threading.Thread(target=submit)
    thread.start()
    end = time.monotonic() + 10
    while submitted < 1024 and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(0.1)
    assert 1024 <= submitted <= 1025
    probe.launch(probe.device.create_stream(), "write", flag, 1)
    thread.join()
    stream.synchronize()
    assert probe.word(counter) == 3001
    probe.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_two_graphs_run_at_once_on_two_streams(workers: int) -> None:
    probe = Probe(HostDevice(workers=workers))
    flag, counter, cell = probe.take(), probe.take(), probe.take()
    waiting = probe.device.create_template()
    first = probe.add(waiting, "gate", flag, counter, blocks=8)
    probe.add(waiting, "fold", cell, 5, after=[first])
    opening = probe.device.create_template()
    last: list[int] = []
    for _ in range(50):
        last = [probe.add(opening, "count", counter, blocks=4, after=last)]
    probe.add(opening, "write", flag, 1, after=last)
    executables = waiting.instantiate(), opening.instantiate()
    for executable in executables:
        executable.launch(probe.device.create_stream())
    probe.device.synchronize()
    assert (probe.word(cell), probe.word(counter)) == (5, 208)
    probe.close()


def test_a_dropped_stream_still_does_its_work(probe: Probe) -> None:
    cell, counter = probe.take(), probe.take()
    stream = probe.device.create_stream()
    probe.launch(stream, "spin", counter, 50_000)
    probe.launch(stream, "fold", cell, 1)
    del stream
    probe.device.synchronize()
    assert (probe.word(counter), probe.word(cell)) == (1, folded(0, 1))
    assert probe.counter("streams_live") == 0


def test_streams_and_events_of_another_device_are_refused() -> None:
    here, there = Probe(HostDevice(workers=1)), Probe(HostDevice(workers=1), base=BASE + (8 << 30))
    stream, event = there.device.create_stream(), there.device.create_event()
    template = here.device.create_template()
    template.add_empty()
    executable = template.instantiate()
    with pytest.raises(UsageError):
        executable.launch(stream)
    with pytest.raises(UsageError):
        here.device.create_stream().wait(event)
    executable.launch(here.device.create_stream())
    executable.close()
    here.close()
    there.close()
