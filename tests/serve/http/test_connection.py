"""What a connection may do beside its requests: it disturbs no answer, and it does not stay open for nothing."""

from __future__ import annotations

import time
from typing import Any

import pytest
from scripted_worker import Line, Script
from served import ids, serving
from wire import ask, connect, post, read_all

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


def test_a_body_that_nobody_reads_must_come_to_an_end() -> None:
    with serving(Script(line=lambda submit, place: Line(ids("x"))), limits=Limits(keep_alive=1.0)) as served:
        with connect(served.url) as connection:
            connection.sendall(b"POST /nowhere HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n")
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 404")
            end = time.monotonic() + 10
            with pytest.raises((BrokenPipeError, ConnectionResetError)):
                while time.monotonic() < end:
                    connection.sendall(b"x")
                    time.sleep(0.05)


def test_a_body_that_nobody_reads_leaves_the_connection_usable() -> None:
    with serving(Script(line=lambda submit, place: Line(ids("x"))), limits=Limits(keep_alive=5.0)) as served:
        with connect(served.url) as connection:
            connection.sendall(b"POST /nowhere HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\n")
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 404")
            connection.sendall(b"1234GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            assert read_all(connection).startswith(b"HTTP/1.1 200")
        assert ask(served.url, "/health").status == 200
