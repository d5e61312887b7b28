"""What a connection may do beside its requests: it disturbs no answer, and it does not stay open for nothing."""

from __future__ import annotations

import contextlib
import socket
import time
from contextlib import AbstractContextManager
from typing import Any

import pytest
from scripted_worker import Line, Script
from served import Served, ids, serving
from wire import connect, post, read_all

from heliograph.serve.limits import Limits

CHAT = "/v1/chat/completions"


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]} | fields


@pytest.mark.parametrize("more", [b"\r\n", b"GET /health HTTP/1.1\r\nhost: loc"], ids=["a line's end", "a head"])
def test_what_comes_during_an_answer_does_not_break_it_off(more: bytes) -> None:
    """Old clients end a body by a line's end that it does not count; others begin their next request."""
    script = Script(line=lambda submit, place: Line(ids("x" * 40)), interval=0.05)
    with serving(script, limits=Limits(keep_alive=1.0)) as served, connect(served.url) as connection:
        connection.sendall(post(CHAT, chat(stream=True)))
        served.eventually(lambda: len(served.told.launches) > 0)
        connection.sendall(more)
        assert read_all(connection).count(b"[DONE]") == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("at_once", [False, True], ids=["later", "at once"])
def test_a_client_that_has_sent_more_requests_and_leaves_frees_its_rows(at_once: bool, stream: bool) -> None:
    script = Script(line=lambda submit, place: Line(ids("x" * 400)), interval=0.02)
    more = post(CHAT, chat(user="u" * 100_000))[:-1]
    with serving(script) as served:
        with connect(served.url) as connection:
            connection.sendall(post(CHAT, chat(stream=stream)) + (more if at_once else b""))
            served.eventually(lambda: len(served.told.launches) > 2)
            connection.sendall(more)
        served.eventually(lambda: not served.told.under_way)
        assert len(served.told.cancelled) == 1


def test_requests_that_came_together_are_answered_in_turn() -> None:
    with serving(Script(line=lambda submit, place: Line(ids("Hello")))) as served, connect(served.url) as connection:
        last = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        connection.sendall(post(CHAT, chat()) * 3 + last)
        data = read_all(connection)
        assert (data.count(b"HTTP/1.1 200"), data.count(b"Hello")) == (4, 3)
        assert data.endswith(b'{"status":"ready"}')


def short(keep_alive: float) -> AbstractContextManager[Served]:
    return serving(Script(line=lambda submit, place: Line(ids("x"))), limits=Limits(keep_alive=keep_alive))


def refused(connection: socket.socket, length: int) -> None:
    """The head of a request whose body nobody reads, and its answer."""
    connection.sendall(b"POST /nowhere HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % length)
    assert connection.recv(1 << 16).startswith(b"HTTP/1.1 404")


def trickle(connection: socket.socket, seconds: float) -> None:
    """A byte now and then, for so long or until the other side has closed."""
    end = time.monotonic() + seconds
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while time.monotonic() < end:
            connection.sendall(b"x")
            time.sleep(0.05)
        pytest.fail("the connection stayed open")


def test_a_body_that_nobody_reads_must_come_to_an_end() -> None:
    with short(1.0) as served, connect(served.url) as connection:
        refused(connection, 1000)
        trickle(connection, 10.0)


def test_a_body_that_nobody_reads_leaves_the_connection_usable() -> None:
    with short(5.0) as served, connect(served.url) as connection:
        refused(connection, 4)
        connection.sendall(b"1234GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert read_all(connection).startswith(b"HTTP/1.1 200")
