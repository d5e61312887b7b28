"""The worker's loop between a socket and an engine on a fake device."""

from __future__ import annotations

import random
import socket
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from threading import Event, Thread

import pytest
from fake_device import FakeClock, FakeDevice
from single_run import single_run

from heliograph.errors import ProtocolError, SelfTestError
from heliograph.serve.frames import (
    Cancel,
    Decoder,
    Ended,
    FromWorker,
    Launched,
    Phase,
    Proceed,
    Ready,
    Start,
    Stop,
    Submit,
    encode,
)
from heliograph.serve.limits import Limits
from heliograph.serve.worker.engine import Engine
from heliograph.serve.worker.link import FrontGone, Link
from heliograph.serve.worker.main import serve

WAIT = 30.0


class Loop:
    """The loop in a thread, and the front's end of its socket."""

    def __init__(self, device: FakeDevice, front: socket.socket, worker: socket.socket, limits: Limits) -> None:
        self.device = device
        self.front = front
        self.error: Exception | None = None
        self._decoder: Decoder[FromWorker] = Decoder(FromWorker)  # type: ignore[arg-type]
        self._link = Link(worker.detach(), limits)
        self._engine = Engine(device, FakeClock())
        self._limits = limits
        self._thread = Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            serve(self._link, self._engine, self._limits)
        except (FrontGone, ProtocolError, SelfTestError) as error:
            self.error = error

    def send(self, *messages: Start | Submit | Cancel | Stop) -> None:
        self.front.sendall(b"".join(map(encode, messages)))

    def receive(self) -> list[FromWorker]:
        return list(self._decoder.feed(self.front.recv(1 << 16)))

    def end(self) -> None:
        self._thread.join(WAIT)
        assert not self._thread.is_alive()

    def close(self) -> None:
        self.front.close()
        self.end()
        self._link.close()


def loop(device: FakeDevice, limits: Limits) -> Iterator[Loop]:
    front, worker = socket.socketpair()
    front.settimeout(WAIT)
    running = Loop(device, front, worker, limits)
    yield running
    running.close()


@pytest.fixture
def running() -> Iterator[Loop]:
    yield from loop(FakeDevice(), Limits(quiet=0.001))


@pytest.fixture
def patient() -> Iterator[Loop]:
    """It would build a bucket after a minute without a row."""
    yield from loop(FakeDevice(), Limits(quiet=60.0))


class Gated(FakeDevice):
    """Builds of its smallest buckets wait until a test lets them."""

    def __init__(self) -> None:
        super().__init__(ready="none")
        self.gate = Event()

    def prepare(self, entry: str, size: int, /) -> None:
        if size == self.sizes[entry][0]:
            assert self.gate.wait(WAIT)
        super().prepare(entry, size)


@pytest.fixture
def gated() -> Iterator[Loop]:
    yield from loop(Gated(), Limits(quiet=60.0))


@pytest.fixture
def fresh() -> Iterator[Loop]:
    """Nothing is built."""
    yield from loop(FakeDevice(ready="none"), Limits(quiet=60.0))


@pytest.fixture
def alone() -> Iterator[Loop]:
    """Nothing is built, and its front says nothing."""
    yield from loop(FakeDevice(ready="none"), Limits(quiet=0.05))


class Broken(FakeDevice):
    """Its decode bucket of two rows does not give its recorded results."""

    def prepare(self, entry: str, size: int, /) -> None:
        if (entry, size) == ("decode", 2):
            raise SelfTestError("testing decode/2", found="another result", required="the recorded one", hint="none")
        super().prepare(entry, size)


@pytest.fixture
def broken() -> Iterator[Loop]:
    yield from loop(Broken(), Limits(quiet=0.2))


@pytest.fixture
def bounded() -> Iterator[Loop]:
    """Its link holds 2,000 bytes that the front has not taken."""
    yield from loop(FakeDevice(), Limits(unsent=2000))


def gather(running: Loop, rows: set[int]) -> tuple[dict[int, list[int]], dict[int, str]]:
    """Tokens and ends of rows, until all have ended."""
    tokens: dict[int, list[int]] = defaultdict(list)
    ends: dict[int, str] = {}
    while not rows <= ends.keys():
        for message in running.receive():
            if isinstance(message, Ended):
                ends[message.row] = message.end
            elif isinstance(message, Launched):
                for gain in message.gains:
                    tokens[gain.row] += gain.tokens
                    ends |= {gain.row: gain.end} if gain.end else {}
    return tokens, ends


def test_rows_that_are_submitted_gain_their_tokens(running: Loop) -> None:
    orders = [Submit(((row, row),), (row % 11, 3), 9) for row in range(6)]
    running.send(*orders)
    tokens, ends = gather(running, set(range(6)))
    assert [(tokens[row], ends[row]) for row in range(6)] == [
        single_run(order, row, running.device.text) for row, order in enumerate(orders)
    ]


def test_no_order_waits_for_another_one(running: Loop) -> None:
    """Whatever the pieces in which frames come and the pauses between them: around ``quiet``, during a build, just
    as the loop goes to sleep. Each order is answered before anything else is said."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for row in range(200):
        before = [Cancel((1_000_000,))] * draw.randrange(3)  # of a row that never was
        data = b"".join(map(encode, [*before, Submit(((row, row),), (row % 11, 3), draw.randrange(1, 6))]))
        cuts = sorted(draw.sample(range(1, len(data)), draw.randrange(4)))
        for start, end in pairwise([0, *cuts, len(data)]):
            running.front.sendall(data[start:end])
            time.sleep(draw.choice([0, 0.0002, 0.001, 0.002]))
        gather(running, {row})


def test_cancels_and_refusals_are_answered(running: Loop) -> None:
    running.send(Submit(((1, 0),), (11,), 1), Submit(((2, 0), (3, 0)), (1,), 20), Cancel((3,)))
    _, ends = gather(running, {1, 2, 3})
    assert ends == {1: "refused", 2: "length", 3: "cancelled"}


def test_stop_ends_the_loop(running: Loop) -> None:
    running.send(Submit(((1, 0),), (1,), 20), Stop())
    running.end()
    assert running.error is None


def test_a_front_that_goes_ends_the_loop(running: Loop) -> None:
    running.send(Submit(((1, 0),), (1,), 20))
    running.front.close()
    running.end()
    assert isinstance(running.error, FrontGone)


def test_a_second_start_breaks_the_protocol(running: Loop) -> None:
    running.send(Start(1, "core"))
    running.end()
    assert isinstance(running.error, ProtocolError)


def test_ready_is_said_when_the_buckets_of_a_start_have_passed_and_rows_do_not_wait_for_it(gated: Loop) -> None:
    assert isinstance(gated.device, Gated)
    order = Submit(((1, 5),), (1, 3), 1)
    gated.send(order)  # before anything is built; the largest prefill bucket is what it takes
    told: list[FromWorker] = []
    while not any(isinstance(each, Launched) for each in told):
        told += gated.receive()
    gated.device.gate.set()
    while not any(isinstance(each, Ready) for each in told):
        told += gated.receive()
    assert [type(each) for each in told] == [Launched, Phase, Ready]
    assert gated.device.launches == [("prefill", 8, 2)]
    assert gated.device.built == [("prefill", 8), ("decode", 4), ("prefill", 2), ("decode", 1)]


def test_only_what_lets_a_row_begin_is_built_before_the_front_has_submitted_what_it_held_back(fresh: Loop) -> None:
    end = time.monotonic() + WAIT
    while not fresh.device.built:
        assert time.monotonic() < end
        time.sleep(0.001)
    time.sleep(0.1)
    assert fresh.device.built == [("prefill", 8)]
    fresh.send(Proceed())
    told: list[FromWorker] = []
    while not any(isinstance(each, Ready) for each in told):
        told += fresh.receive()
    assert len(fresh.device.built) == 4


def test_self_tests_go_on_when_the_front_says_nothing(alone: Loop) -> None:
    told: list[FromWorker] = []
    while not any(isinstance(each, Ready) for each in told):
        told += alone.receive()
    assert alone.device.built[:4] == [("prefill", 8), ("decode", 4), ("prefill", 2), ("decode", 1)]


def test_buckets_are_built_while_there_is_nothing_to_do(running: Loop) -> None:
    end = time.monotonic() + WAIT
    while len(running.device.built) < 6:
        assert time.monotonic() < end
        time.sleep(0.001)


def test_rows_that_come_soon_do_not_wait_for_a_build(patient: Loop) -> None:
    for row in range(20):
        patient.send(Submit(((row, 0),), (1,), 2))
        gather(patient, {row})
    assert len(patient.device.built) == 4


def test_a_bucket_that_fails_its_self_test_is_never_launched_and_ends_the_loop(broken: Loop) -> None:
    """B6. Until it is built two rows run in the next larger bucket."""
    broken.send(Submit(((0, 0), (1, 1)), (1,), 22))
    _, ends = gather(broken, {0, 1})
    assert set(ends.values()) <= {"stop", "length"}
    broken.end()
    assert isinstance(broken.error, SelfTestError)
    assert {bucket for entry, bucket, _ in broken.device.launches if entry == "decode"} <= {1, 4}


def test_a_front_that_takes_nothing_stops_the_rounds_and_loses_no_token(bounded: Loop) -> None:
    """The socket's own buffer fills first; then the link's; then no more rounds are made."""
    orders = [Submit(((row, row),), (row % 11, 3), 22) for row in range(1200)]
    sender = Thread(target=lambda: bounded.send(*orders))
    sender.start()
    launched, same, end = -1, 0, time.monotonic() + WAIT
    while same < 20:  # 0.2 s without a launch
        assert time.monotonic() < end
        same = same + 1 if launched == len(bounded.device.launches) else 0
        launched = len(bounded.device.launches)
        time.sleep(0.01)
    tokens, ends = gather(bounded, set(range(1200)))
    sender.join(WAIT)
    assert len(bounded.device.launches) > launched
    assert all(
        (tokens[row], ends[row]) == single_run(order, row, bounded.device.text) for row, order in enumerate(orders)
    )
