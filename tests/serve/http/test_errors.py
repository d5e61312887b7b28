"""Errors on the wire: their status before the first byte, the dialect's body, and whether to try again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from scripted_worker import Line, Script
from served import Served, ids, serving
from wire import ask, connect, post, read_all

from heliograph.runtime.text import Pieces

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    def line(submit: Any, place: int) -> Line:
        return Line([], "refused", "no room for it") if 200 in submit.prompt else Line(ids("Hello"))

    with serving(Script(line=line)) as running:
        yield running


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": HI} | fields


INVALID: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"n": 0}, "n"), ({"n": 9}, "n"), ({"n": -1}, "n"),
    ({"top_p": -1}, "top_p"), ({"top_p": 2}, "top_p"), ({"temperature": -1}, "temperature"),
    ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": -1}, "max_tokens"), ({"max_tokens": "5"}, "max_tokens"),
    ({"stop": ""}, "stop"), ({"stop": ["a", ""]}, "stop"), ({"stop": 5}, "stop"),
    ({"stop_token_ids": [10**6]}, "stop_token_ids"), ({"logit_bias": {"1000000": 1}}, "logit_bias"),
    ({"seed": 2**63}, "seed"), ({"seed": 0.5}, "seed"),
    ({"tools": [{"type": "function"}]}, "tools"), ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"logprobs": True}, "logprobs"),
    ({"messages": [{"role": "user", "content": "x" * 600}]}, "messages"),
    ({"messages": [{"role": "user", "content": "REFUSE"}]}, "messages"),
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "param"), INVALID)
def test_an_invalid_field_is_a_400_that_names_it_streamed_or_not(
    served: Served, fields: dict[str, Any], param: str, stream: bool
) -> None:
    """E10, E11, E13, E14: also with a stream the status is the real one."""
    answer = ask(served.url, CHAT, chat(stream=stream, **fields))
    assert (answer.status, answer.error["param"]) == (400, param)
    assert answer.error["type"] == "invalid_request_error"
    assert answer.headers["x-should-retry"] == "false"
    assert ask(served.url, CHAT, chat(stream=stream)).status == 200


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 50_000])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
def test_a_body_that_is_no_json_object_is_a_400(served: Served, path: str, body: bytes) -> None:
    assert ask(served.url, path, body, method="POST").status == 400


def test_a_neighbour_of_hostile_requests_gets_its_whole_answer() -> None:
    """E11"""
    script = Script(line=lambda submit, place: Line(ids("y" * 100)), interval=0.002)
    with serving(script) as running, ThreadPoolExecutor(1) as pool:
        stays = pool.submit(ask, running.url, CHAT, chat(stream=True))
        running.eventually(lambda: len(running.told.launches) > 1)
        for fields, _ in INVALID:
            assert ask(running.url, CHAT, chat(**fields)).status == 400
        events = stays.result(30).events
        assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == "y" * 100
        assert len(running.told.submits) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_fault_in_the_text_of_one_answer_is_a_500_of_that_one_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    """E10"""
    whole, bad = Pieces.bytes_of, ids("Q")[0]

    def bytes_of(pieces: Pieces, token: int) -> bytes:
        if token == bad:
            raise ValueError("no such byte")
        return whole(pieces, token)

    monkeypatch.setattr(Pieces, "bytes_of", bytes_of)
    script = Script(
        line=lambda submit, place: Line(ids("ByeQ" if bad in submit.prompt else "Hello " * 9)), interval=0.01
    )
    with serving(script) as served, ThreadPoolExecutor(1) as pool:
        other = pool.submit(ask, served.url, CHAT, chat())
        answer = ask(served.url, CHAT, chat(stream=stream, messages=[{"role": "user", "content": "Q"}]))
        error = answer.events[-1]["error"] if stream else answer.error
        assert (answer.status, error["code"]) == (200 if stream else 500, "internal")
        assert other.result(30).json["choices"][0]["message"]["content"] == "Hello " * 9
        assert ask(served.url, CHAT, chat()).status == 200
        assert served.heard.restarts == []
    assert "no such byte" in caplog.text
    assert "no such byte" not in answer.body.decode()


def test_an_error_in_what_was_sent_is_not_echoed_at_length(served: Served) -> None:
    for fields in (chat(model="Z" * 10_000), chat(messages=[{"role": "Z" * 10_000, "content": ""}])):
        answer = ask(served.url, CHAT, fields)
        assert len(answer.body) < 1000
        assert b"Z" * 201 not in answer.body


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_worker_refuses_is_a_400_with_its_words(served: Served, stream: bool) -> None:
    answer = ask(served.url, COMPLETIONS, {"model": "tiny", "prompt": [200], "stream": stream})
    assert (answer.status, answer.error["message"]) == (400, "no room for it")


def test_an_unknown_model_is_a_404(served: Served) -> None:
    answer = ask(served.url, CHAT, chat(model="other"))
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("path", ["/", "/v1", "/v2/chat/completions", "/v1/chat/completions/", "/metrics/x"])
def test_an_unknown_path_is_a_404_in_the_dialect(served: Served, path: str) -> None:
    answer = ask(served.url, path)
    assert (answer.status, answer.error["type"]) == (404, "invalid_request_error")


@pytest.mark.parametrize(
    ("path", "method", "allowed"),
    [
        (CHAT, "GET", "POST"),
        (COMPLETIONS, "PUT", "POST"),
        ("/tokenize", "GET", "POST"),
        ("/v1/models", "POST", "GET"),
        ("/health", "DELETE", "GET"),
    ],
)
def test_a_wrong_method_is_a_405_that_names_the_right_one(served: Served, path: str, method: str, allowed: str) -> None:
    answer = ask(served.url, path, method=method)
    assert (answer.status, allowed in answer.headers["allow"]) == (405, True)
    assert answer.error


# ---- headers -------------------------------------------------------------------------------------------------------
def test_unknown_fields_are_named_in_a_header(served: Served) -> None:
    assert ask(served.url, CHAT, chat(mirostat=1, dry=2)).headers["x-heliograph-ignored"] == "dry, mirostat"
    assert "x-heliograph-ignored" not in ask(served.url, CHAT, chat()).headers


@pytest.mark.parametrize("stream", [False, True])
def test_no_name_of_a_field_breaks_the_header(served: Served, stream: bool) -> None:
    names = {"a\r\nx-evil: 1": 1, "é🙂": 1, "b,c": 1, "": 1, "y" * 500: 1} | {f"f{at}": 1 for at in range(100)}
    answer = ask(served.url, CHAT, chat(stream=stream, **names))
    assert (answer.status, "x-evil" in answer.headers) == (200, False)
    assert len(answer.headers["x-heliograph-ignored"]) < 2000


def test_strict_servers_refuse_unknown_fields() -> None:
    with serving(Script(line=lambda submit, place: Line(ids("a"))), strict=True) as running:
        answer = ask(running.url, CHAT, chat(mirostat=1))
        assert (answer.status, answer.error["param"]) == (400, "mirostat")
        assert ask(running.url, CHAT, chat(user="me")).status == 200


def test_a_request_id_is_echoed_and_is_in_the_answers_id(served: Served) -> None:
    answer = ask(served.url, CHAT, chat(), headers={"X-Request-Id": "my-id.1"})
    assert (answer.headers["x-request-id"], answer.json["id"]) == ("my-id.1", "chatcmpl-my-id.1")
    answer = ask(served.url, COMPLETIONS, {"model": "tiny", "prompt": "a"}, headers={"X-Request-Id": "my-id.2"})
    assert answer.json["id"] == "cmpl-my-id.2"
    assert ask(served.url, "/nowhere", headers={"X-Request-Id": "my-id.3"}).headers["x-request-id"] == "my-id.3"


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", 'a"b', "é"])
def test_a_request_id_that_is_none_is_replaced(served: Served, given: str) -> None:
    answer = ask(served.url, CHAT, chat(), headers={"X-Request-Id": given})
    made = answer.headers["x-request-id"]
    assert made.startswith("made-")
    assert answer.json["id"] == f"chatcmpl-{made}"


def test_the_content_type_need_not_be_json(served: Served) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-8"):
        assert ask(served.url, CHAT, chat(), headers={"content-type": kind}).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example"]
)
def test_a_name_of_another_machine_is_refused_on_a_local_server(served: Served, host: str) -> None:
    assert ask(served.url, "/health", headers={"host": host}).status == 421


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1", "[::1]:80", "[::1]", "api.localhost"])
def test_this_machine_by_any_name_is_not(served: Served, host: str) -> None:
    assert ask(served.url, "/health", headers={"host": host}).status == 200


def test_no_page_of_another_origin_is_let_in(served: Served) -> None:
    answer = ask(served.url, CHAT, chat(), headers={"origin": "https://evil.example"})
    assert not any(name.startswith("access-control") for name in answer.headers)


# ---- streams -------------------------------------------------------------------------------------------------------
def test_a_stream_is_events_and_says_so(served: Served) -> None:
    answer = ask(served.url, CHAT, chat(stream=True))
    assert answer.headers["content-type"].startswith("text/event-stream")
    chunks = answer.events
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert all("usage" not in chunk for chunk in chunks)


def test_one_connection_takes_many_requests(served: Served) -> None:
    with connect(served.url) as connection:
        request = post(CHAT, chat(max_tokens=1)) + post(CHAT, chat(max_tokens=2, stream=True))
        connection.sendall(request + post(CHAT, {}).replace(b"HTTP/1.1\r\n", b"HTTP/1.1\r\nconnection: close\r\n"))
        data = read_all(connection)
    assert (data.count(b"HTTP/1.1 200"), data.count(b"HTTP/1.1 400"), data.count(b"[DONE]")) == (2, 1, 1)


# ---- the rest ------------------------------------------------------------------------------------------------------
def test_text_becomes_tokens_and_text_again(served: Served) -> None:
    tokens = ask(served.url, "/tokenize", {"model": "tiny", "prompt": "Hi 🙂"})
    assert tokens.json == {"tokens": ids("Hi 🙂"), "count": 7, "max_model_len": 512}
    assert ask(served.url, "/detokenize", {"tokens": tokens.json["tokens"]}).json == {"prompt": "Hi 🙂"}


def test_a_conversation_becomes_the_tokens_that_a_chat_would_have(served: Served) -> None:
    ask(served.url, CHAT, chat())
    tokens = ask(served.url, "/tokenize", {"messages": HI}).json["tokens"]
    assert tokens == list(served.told.submits[-1].prompt)


def test_tokens_that_the_model_does_not_have_are_refused(served: Served) -> None:
    assert ask(served.url, "/detokenize", {"tokens": [258, 259]}).error["param"] == "tokens"
    assert ask(served.url, "/tokenize", {"model": "other", "prompt": "a"}).status == 404


def test_the_version_is_told(served: Served) -> None:
    assert set(ask(served.url, "/version").json) == {"version"}


def test_health_is_json(served: Served) -> None:
    assert json.loads(ask(served.url, "/health").body) == {"status": "ready"}
    assert ask(served.url, "/health", method="HEAD").status == 200
