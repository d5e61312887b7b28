"""Waits on a CUDA device: they end, and other threads of the interpreter run meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from fake_cuda.control import IMAGE
from heliograph._native import Executable, SealedImage
from rigs import Rig

WORK = 200  # milliseconds that the device is busy for


def spinning(rig: Rig, milliseconds: int) -> Executable:
    rig.stream.begin_capture()
    rig.spin(rig.stream, milliseconds)
    return rig.stream.end_capture().instantiate()


def test_drain_ends_although_others_go_on_launching(cuda: Rig) -> None:
    executable, over = spinning(cuda, 20), threading.Event()

    def launch() -> None:
        stream = cuda.device.create_stream()
        while not over.is_set():
            if executable.in_flight < 4:
                executable.launch(stream)
            else:
                time.sleep(0.001)

    launcher, drainer = threading.Thread(target=launch), threading.Thread(target=executable.drain)
    launcher.start()
    while executable.in_flight < 4:
        time.sleep(0.001)
    drainer.start()
    drainer.join(timeout=1)  # at most 5 launches of 20 ms
    ended = not drainer.is_alive()
    over.set()
    launcher.join()
    drainer.join()
    executable.drain()
    assert ended


def test_drain_waits_for_all_streams_and_every_launch_before_it(cuda: Rig) -> None:
    executable = spinning(cuda, 20)
    streams = [cuda.device.create_stream() for _ in range(3)]
    for stream in streams:
        executable.launch(stream)
    executable.drain()
    assert all(stream.query() for stream in streams)
    assert executable.in_flight == 0


@contextmanager
def ticks() -> Iterator[list[int]]:
    """What another thread counts up to meanwhile, once a millisecond."""
    count, over = [0], threading.Event()

    def tick() -> None:
        while not over.wait(0.001):
            count[0] += 1

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        yield count
    finally:
        over.set()
        thread.join()


def test_looking_a_function_up_waits_without_the_interpreter_lock(cuda: Rig) -> None:
    module = cuda.device.load_module(SealedImage("text", IMAGE))
    with ticks() as count:
        cuda.spin(cuda.stream, WORK)
        before = count[0]
        module.function("nothing")
        assert cuda.stream.query()  # it waited, as the driver does
        assert count[0] - before > 10
