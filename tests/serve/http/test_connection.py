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
