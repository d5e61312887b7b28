"""Answers, chunks and errors have the dialect's form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from heliograph.serve.frames import Settings
from heliograph.serve.front.journal import End, Row, Work
from heliograph.serve.front.openai_answer import (
    DONE,
    PING,
    REASONS,
    Answer,
    Choice,
    error_body,
    error_event,
    refusal_of,
    usage_of,
)
from heliograph.serve.front.openai_request import Model
from heliograph.serve.front.refusal import Refusal, unavailable
from heliograph.serve.front.text_stream import TextStream

MODEL = Model("m", "d" * 64, 1, context=64, vocabulary=300, eos=(2,), concurrency=4, biases=8)


class Nothing:
    def add(self, token: int) -> str:
        return ""

    def end(self) -> str:
        return ""


def row(tokens: int, end: End | None, message: str = "") -> Row:
    work = Work((1,), (0,), 100, 0, (), (), Settings())
    return Row(0, 0, work, TextStream(Nothing()), lambda kept: None, [5] * tokens, end, message)


def answer(*, chat: bool = True, usage: bool = False) -> Answer:
    return Answer(chat, "id1", 123, MODEL, usage)


def data(event: bytes) -> Any:
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    return json.loads(event[6:])


# The table of endings: what the journal says, what the client is told.
ENDINGS = {
    End.STOP: ("stop", None),
    End.LENGTH: ("length", None),
    End.CANCELLED: (None, 503),
    End.REFUSED: (None, 400),
    End.FAILED: (None, 503),
    End.BROKEN: (None, 500),
}


@pytest.mark.parametrize("end", End)
def test_each_end_is_a_reason_or_an_error(end: End) -> None:
    """E9"""
    reason, status = ENDINGS[end]
    if reason is not None:
        assert REASONS[end] == reason
        assert data(answer().closing(0, end))["choices"][0]["finish_reason"] == reason
    else:
        assert end not in REASONS
        assert refusal_of(row(0, end, "why")).status == status


@pytest.mark.parametrize(("chat", "prefix"), [(True, "chatcmpl-id1"), (False, "cmpl-id1")])
def test_every_chunk_of_a_stream_has_its_id_model_and_time(chat: bool, prefix: str) -> None:
    made = answer(chat=chat, usage=True)
    events = [made.piece(1, "a"), made.closing(1, End.STOP), made.last(3, [row(2, End.STOP)])]
    for chunk in map(data, events):
        assert (chunk["id"], chunk["model"], chunk["created"]) == (prefix, "m", 123)
        assert chunk["system_fingerprint"] == f"fp_{'d' * 12}"
    assert data(events[0])["choices"][0]["index"] == 1


def test_only_a_chat_says_who_speaks() -> None:
    assert data(answer().opening(0))["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert answer(chat=False).opening(0) == b""


def test_the_usage_comes_only_when_it_was_asked_for() -> None:
    """E20"""
    assert answer().last(3, [row(2, End.STOP)]) == b""
    last = data(answer(usage=True).last(3, [row(2, End.STOP), row(4, End.LENGTH)]))
    assert last["choices"] == []
    assert last["usage"] == usage_of(3, [row(2, End.STOP), row(4, End.LENGTH)])
    assert (last["usage"]["completion_tokens"], last["usage"]["total_tokens"]) == (6, 9)
    assert data(answer(usage=True).piece(0, "a"))["usage"] is None
    assert "usage" not in data(answer().piece(0, "a"))


def test_a_whole_answer_has_each_choice_with_its_own_end() -> None:
    choices = [Choice("a", row(1, End.STOP)), Choice("", row(0, End.LENGTH))]
    body = json.loads(answer().whole(choices, 7))
    assert [choice["message"]["content"] for choice in body["choices"]] == ["a", ""]
    assert [choice["finish_reason"] for choice in body["choices"]] == ["stop", "length"]
    texts = json.loads(answer(chat=False).whole(choices, 7))["choices"]
    assert [(choice["index"], choice["text"]) for choice in texts] == [(0, "a"), (1, "")]


def test_an_error_in_a_stream_is_its_body_and_then_the_end() -> None:
    refusal = unavailable("busy")
    event = error_event(refusal)
    assert event.endswith(DONE)
    assert data(event.removesuffix(DONE)) == error_body(refusal)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (404, "invalid_request_error"), (500, "server_error"), (503, "server_error")],
)
def test_an_error_has_its_type(status: int, kind: str) -> None:
    body = error_body(Refusal(status, "m", param="p", code="c"))
    assert body == {"error": {"message": "m", "type": kind, "param": "p", "code": "c"}}


def test_what_may_succeed_later_says_when_and_the_rest_that_it_will_not() -> None:
    assert unavailable("busy").headers == {"retry-after": "1", "retry-after-ms": "1000"}
    assert Refusal(400, "bad").headers == {"x-should-retry": "false"}


def test_a_ping_is_a_comment() -> None:
    assert PING.startswith(b":")
    assert PING.endswith(b"\n\n")
