"""Frames on a real socket: never waits when it should not, keeps what was not taken, stops taking at its bound."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from threading import Timer

import pytest

from heliograph.errors import ProtocolError
from heliograph.serve.frames import Cancel, Decoder, Ended, FromWorker, Load, Start, Stop, encode
from heliograph.serve.limits import Limits
from heliograph.serve.worker.link import FrontGone, Link

LONG = Ended(1, "refused", Load(0, 0, 0), "x" * 100_000)
BOUND = 300_000


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, Link]]:
    """The front's socket, and the worker's link."""
    front, worker = socket.socketpair()
    front.settimeout(20)
    link = Link(worker.detach(), Limits(unsent=BOUND))
    yield front, link
    front.close()
    link.close()


def test_messages_are_received_as_they_come(pair: tuple[socket.socket, Link]) -> None:
    front, link = pair
    assert list(link.receive(0)) == []
    data = encode(Start(1, "core")) + encode(Stop())
    front.sendall(data[:7])
    assert list(link.receive(20)) == []
    front.sendall(data[7:])
    assert list(link.receive(20)) == [Start(1, "core"), Stop()]


def test_messages_that_were_not_taken_come_first_the_next_time(pair: tuple[socket.socket, Link]) -> None:
    front, link = pair
    front.sendall(encode(Start(1, "core")) + encode(Stop()))
    assert next(link.receive(20)) == Start(1, "core")
    front.sendall(encode(Cancel((1,))))
    assert list(link.receive(None)) == [Stop()]
    assert list(link.receive(20)) == [Cancel((1,))]


def test_waiting_ends_with_a_message(pair: tuple[socket.socket, Link]) -> None:
    front, link = pair
    timer = Timer(0.05, front.sendall, [encode(Stop())])
    timer.start()
    assert list(link.receive(None)) == [Stop()]
    timer.join()


def test_what_the_front_does_not_take_is_kept_in_order_up_to_the_bound(pair: tuple[socket.socket, Link]) -> None:
    front, link = pair
    sent = 0
    while not link.full:
        link.send(LONG)
        sent += 1
        assert sent < 1000
    front.sendall(encode(Stop()))
    assert list(link.receive(0)) == []  # nothing more is taken in either
    decoder: Decoder[Ended] = Decoder(FromWorker)  # type: ignore[arg-type]
    taken: list[Ended] = []
    while len(taken) < sent:
        taken += decoder.feed(front.recv(1 << 16))
        link.flush()
    assert taken == [LONG] * sent
    assert not link.full
    assert list(link.receive(20)) == [Stop()]


def test_waiting_while_full_ends_when_the_front_takes_something(pair: tuple[socket.socket, Link]) -> None:
    front, link = pair
    while not link.full:
        link.send(LONG)

    timer = Timer(0.05, front.recv, [1 << 20])
    timer.start()
    assert list(link.receive(20)) == []
    timer.join()
    assert not link.full


def test_nothing_is_taken_in_while_what_is_left_exceeds_the_bound(pair: tuple[socket.socket, Link]) -> None:
    front, link = pair
    for _ in range(20):  # far beyond the bound, as a round's last frames may be
        link.send(LONG)
    front.sendall(encode(Stop()))
    front.recv(1 << 20)
    assert list(link.receive(20)) == []
    assert link.full


def test_draining_waits_for_the_front_and_not_for_ever(pair: tuple[socket.socket, Link]) -> None:
    front, link = pair
    while not link.full:
        link.send(LONG)
    link.drain(0.01)
    assert link.full
    timer = Timer(0.01, front.recv, [1 << 20])
    timer.start()
    link.drain(0.2)
    timer.join()
    assert not link.full


@pytest.mark.parametrize("rest", [b"", encode(Stop())[:3]], ids=["between frames", "inside a frame"])
def test_a_front_that_closed_is_gone(pair: tuple[socket.socket, Link], rest: bytes) -> None:
    front, link = pair
    front.sendall(encode(Cancel((1,))) + rest)
    front.close()
    assert list(link.receive(20)) == [Cancel((1,))]
    with pytest.raises(FrontGone):
        list(link.receive(20))


def test_sending_to_a_front_that_closed_says_that_it_is_gone(pair: tuple[socket.socket, Link]) -> None:
    front, link = pair
    front.close()
    with pytest.raises(FrontGone):
        link.send(LONG)


def test_a_front_that_closes_while_the_link_is_full_is_gone(pair: tuple[socket.socket, Link]) -> None:
    front, link = pair
    while not link.full:
        link.send(LONG)
    front.close()
    with pytest.raises(FrontGone):
        list(link.receive(20))


def test_bytes_that_are_no_frame_break_the_protocol(pair: tuple[socket.socket, Link]) -> None:
    front, link = pair
    front.sendall(struct.pack("<I", 0))
    with pytest.raises(ProtocolError):
        list(link.receive(20))
