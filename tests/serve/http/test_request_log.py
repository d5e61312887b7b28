"""``serve --log-requests``: one line a request once its answer has ended, and nothing of its text."""

from __future__ import annotations

import pytest
from scripted_worker import Line, Script
from served import ids, serving
from wire import ask

from heliograph.serve.front.start import Answered

CHAT = "/v1/chat/completions"
TEXT = "a secret"


def script() -> Script:
    return Script(line=lambda submit, place: Line(ids("Hello there")))


def chat(**fields: object) -> dict[str, object]:
    return {"model": "tiny", "messages": [{"role": "user", "content": TEXT}], "max_tokens": 3} | fields


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_told_with_its_tokens_times_and_ends(stream: bool) -> None:
    with serving(script(), log_requests=True) as served:
        asked = ask(served.url, CHAT, chat(stream=stream, n=2), headers={"X-Request-Id": "mine"})
        assert asked.status == 200
        served.eventually(lambda: len(served.heard.answers) > 0)
    (told,) = served.heard.answers
    assert (told.id, told.method, told.path, told.status) == ("mine", "POST", CHAT, 200)
    assert told.prompt_tokens > 0
    assert told.generated_tokens == 6
    assert told.ends == ("length", "length")
    assert 0 < told.first_token < told.nanoseconds
    assert TEXT not in str(told)


def test_a_refusal_is_told_with_its_status() -> None:
    with serving(script(), log_requests=True) as served:
        assert ask(served.url, CHAT, chat(model="other")).status == 404
        assert ask(served.url, "/nowhere?secret=1").status == 404
        served.eventually(lambda: len(served.heard.answers) == 2)
    assert [(told.status, told.path, told.generated_tokens) for told in served.heard.answers] == [
        (404, CHAT, 0),
        (404, "/nowhere", 0),
    ]


def test_probes_are_not_told() -> None:
    with serving(script(), log_requests=True) as served:
        for path in ("/health", "/metrics", "/version"):
            assert ask(served.url, path).status == 200
        served.eventually(lambda: len(served.heard.answers) > 0)
    assert [told.path for told in served.heard.answers] == ["/version"]


def test_nothing_is_told_unless_asked_for() -> None:
    with serving(script()) as served:
        assert ask(served.url, CHAT, chat()).status == 200
    assert served.heard.answers == []


def test_what_is_told_has_no_field_for_text() -> None:
    assert Answered.__struct_fields__ == (
        "id", "method", "path", "status", "nanoseconds", "prompt_tokens", "generated_tokens", "first_token", "ends",
    )  # fmt: skip
