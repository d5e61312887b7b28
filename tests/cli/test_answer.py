"""A streamed answer: whole ones are read as they were cut, broken ones are errors."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from scripted_server import DONE, END, STREAM, Step, chunked, event, piece, refusal, serving, usage, whole

from heliograph.cli.answer import Answer, Server
from heliograph.errors import AnswerError, UnreachableError, UsageError

REQUEST = {"messages": [{"role": "user", "content": "Hello"}]}


@pytest.mark.parametrize(
    ("url", "server"),
    {
        "http://127.0.0.1:8000": Server(False, "127.0.0.1", 8000, ""),
        "127.0.0.1:8000": Server(False, "127.0.0.1", 8000, ""),
        "http://localhost:8000/v1": Server(False, "localhost", 8000, ""),
        "https://example.org/models/v1/": Server(True, "example.org", 443, "/models"),
        "http://[::1]:9": Server(False, "::1", 9, ""),
    }.items(),
)
def test_an_address_may_be_written_as_people_write_it(url: str, server: Server) -> None:
    assert Server.at(url) == server
    assert Server.at(str(server)) == server


@pytest.mark.parametrize(
    "url", ["", "ftp://127.0.0.1", "http://", "http://host:port", "http://host:1?a=b", "http://[::1"]
)
def test_what_is_no_address_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        Server.at(url)


@contextmanager
def asked(*steps: Step) -> Iterator[Answer]:
    """An answer of a server that says these steps."""
    with serving(steps) as script, Answer(Server.at(script.url), REQUEST) as answer:
        yield answer


def test_an_answer_is_its_pieces_and_then_its_figures() -> None:
    with serving(whole("Grün", " ist", " es.")) as script, Answer(Server.at(script.url), REQUEST) as answer:
        assert list(answer) == ["Grün", " ist", " es."]
    assert script.requests == [REQUEST | {"stream": True, "stream_options": {"include_usage": True}}]
    assert (answer.id, answer.model, answer.finish_reason, answer.tokens) == ("chatcmpl-1", "scripted", "stop", 3)
    assert 0 < answer.sent_ns <= answer.first_ns <= answer.last_ns <= time.monotonic_ns()


def test_the_role_is_no_content_and_comments_are_no_events() -> None:
    quiet = [STREAM, chunked(b": ping\n\n"), piece(role="assistant"), chunked(b": ping\n\n")]
    with asked(*quiet, *whole("x")[1:]) as answer:
        assert list(answer) == ["x"]
    with asked(*quiet, *whole()[1:]) as answer:
        assert list(answer) == []
    assert answer.first_ns == answer.tokens_per_second == 0


def test_events_may_be_cut_anywhere() -> None:
    stream = b"".join(step for step in whole("one", " two") if isinstance(step, bytes))
    head, body = stream[: len(STREAM)], stream[len(STREAM) :]
    with asked(head, *(body[at : at + 1] for at in range(len(body)))) as answer:
        assert list(answer) == ["one", " two"]


@pytest.mark.parametrize("ending", [(), (END,)], ids=["connection", "body"])
@pytest.mark.parametrize("kept", range(1, 6))
def test_a_stream_that_ends_without_its_end_mark_is_an_error_however_far_it_came(
    kept: int, ending: tuple[bytes, ...]
) -> None:
    with asked(*whole("a", "b")[:kept], *ending) as answer, pytest.raises(AnswerError):
        list(answer)


def test_an_error_inside_the_stream_is_an_error_after_the_pieces_before_it() -> None:
    error = event(error={"message": "the worker ended", "type": "server_error"})
    seen: list[str] = []
    with asked(STREAM, piece("half"), error, DONE) as answer, pytest.raises(AnswerError) as caught:
        seen.extend(answer)
    assert seen == ["half"]
    assert "the worker ended" in caught.value.found


@pytest.mark.parametrize("data", [b"no json", b"[]", b"{}", b'{"id":"a","model":"b","choices":[{}]}', b"\xff"])
def test_an_event_of_another_kind_is_an_error(data: bytes) -> None:
    with asked(STREAM, chunked(b"data: " + data + b"\n\n"), *whole("x")[1:]) as answer, pytest.raises(AnswerError):
        list(answer)


def test_a_refusal_is_an_error_that_says_what_the_server_said() -> None:
    steps = refusal(503, message="the queue is full", type="overloaded_error")
    with asked(*steps) as answer, pytest.raises(AnswerError) as caught:
        list(answer)
    assert "503" in caught.value.found
    assert "the queue is full" in caught.value.found


@pytest.mark.parametrize(
    ("status", "step"),
    [(404, "/v1/models"), (400, "as the message says"), (429, "try again"), (503, "try again"), (500, "/health")],
)
def test_what_to_do_next_depends_on_the_status(status: int, step: str) -> None:
    with asked(*refusal(status, message="no")) as answer, pytest.raises(AnswerError) as caught:
        list(answer)
    assert step in caught.value.hint


def test_an_answer_that_is_no_stream_is_an_error() -> None:
    page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nhi"
    with asked(page) as answer, pytest.raises(AnswerError):
        list(answer)


def test_a_connection_that_ends_before_the_answer_is_an_error() -> None:
    with asked() as answer, pytest.raises(AnswerError):
        list(answer)


def test_where_nothing_listens_is_an_error_of_its_own() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(UnreachableError):
        list(Answer(Server.at(f"127.0.0.1:{port}"), REQUEST))


def test_tokens_per_second_counts_the_tokens_after_the_first() -> None:
    with asked(STREAM, piece("a"), piece("b"), usage(3), DONE) as answer:
        list(answer)
    answer.first_ns, answer.last_ns = 1_000_000_000, 1_500_000_000
    assert answer.tokens_per_second == pytest.approx(4)
