"""E4, E10: the worker dies or hangs, and nobody waits for it: statuses, events, health, restart, the end."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec
import openai
import pytest
from scripted_worker import Line, Script
from served import face, ids, serving
from wire import ask

from heliograph.errors import OutOfMemoryError, TamperedError, WorkerError
from heliograph.serve.frames import Failed
from heliograph.serve.limits import Limits

CHAT = "/v1/chat/completions"
QUICK = Limits(silence=0.3, stop=1.0, restarts=2)


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]} | fields


def hello(**more: Any) -> Script:
    return Script(line=lambda submit, place: Line(ids("Hello there")), **more)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", ["dies", "hangs"])
def test_before_the_first_token_it_is_a_503_that_says_when_to_try_again(how: str, stream: bool) -> None:
    script = hello(**{f"{how}_after": 0})
    with serving(script, limits=QUICK) as served:
        answer = ask(served.url, CHAT, chat(stream=stream))
        assert (answer.status, answer.error["type"]) == (503, "server_error")
        assert int(answer.headers["retry-after"]) >= 1
        assert int(answer.headers["retry-after-ms"]) == 1000
        assert "x-should-retry" not in answer.headers
        script.dies_after = script.hangs_after = -1
        served.eventually(lambda: ask(served.url, "/health").status == 200)
        assert ask(served.url, CHAT, chat(stream=stream)).status == 200


@pytest.mark.parametrize("how", ["dies", "hangs"])
@pytest.mark.parametrize("count", [1, 3])
def test_after_the_first_token_it_is_an_event_and_the_end_of_the_stream(how: str, count: int) -> None:
    with serving(hello(**{f"{how}_after": count}), limits=QUICK) as served:
        answer = ask(served.url, CHAT, chat(stream=True))
        assert answer.status == 200
        *chunks, last = answer.events
        assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == "Hello there"[:count]
        assert set(last["error"]) == {"message", "type", "param", "code"}


def test_a_restart_tells_how_long_it_took_itself() -> None:
    begin = time.monotonic()
    with serving(hello(), limits=QUICK) as served:
        time.sleep(0.5)  # not part of it
        served.kill_worker()
        served.eventually(lambda: served.heard.readies == 2)
        assert served.heard.ready_in / 1e9 <= time.monotonic() - begin - 0.5


def test_after_the_first_comment_it_is_an_event_too() -> None:
    """The comments of a long wait are worth more than the status of a failure that comes so late."""
    limits = msgspec.structs.replace(QUICK, ping=0.1, silence=0.5)
    with serving(hello(hangs_after=0), limits=limits) as served:
        answer = ask(served.url, CHAT, chat(stream=True))
        assert (answer.status, answer.body.startswith(b": ping\n\n")) == (200, True)
        (only,) = answer.events
        assert only["error"]["code"] == "unavailable"
        assert ask(served.url, CHAT, chat()).status == 503


def test_the_official_client_raises_it() -> None:
    with serving(hello(dies_after=3), limits=QUICK) as served:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=30)
        stream = client.chat.completions.create(**chat(stream=True))
        with pytest.raises(openai.APIError):
            list(stream)


def test_every_request_under_way_ends() -> None:
    with serving(hello(dies_after=12, interval=0.01), limits=QUICK) as served, ThreadPoolExecutor(8) as pool:
        streams = [pool.submit(ask, served.url, CHAT, chat(stream=True)) for _ in range(4)]
        others = [pool.submit(ask, served.url, CHAT, chat()) for _ in range(4)]
        assert all("error" in answer.result(30).events[-1] for answer in streams if answer.result(30).status == 200)
        assert {answer.result(30).status for answer in others} == {503}


def test_health_is_red_and_new_requests_are_refused_until_another_worker_is_ready() -> None:
    script = hello()
    with serving(script, limits=QUICK) as served:
        assert ask(served.url, "/health").status == 200
        script.start_delay = 0.5
        served.kill_worker()
        served.eventually(lambda: ask(served.url, "/health").json == {"status": "down"})
        assert ask(served.url, "/health").status == 503
        answer = ask(served.url, CHAT, chat())
        assert (answer.status, "retry-after-ms" in answer.headers) == (503, True)
        served.eventually(lambda: ask(served.url, "/health").status == 200)
        assert ask(served.url, CHAT, chat()).status == 200
        assert len(served.heard.restarts) == 1
        assert b"heliograph_worker_restarts_total 1.0" in ask(served.url, "/metrics").body


def test_a_worker_that_ends_too_often_ends_the_server_with_an_error() -> None:
    with serving(hello(), limits=QUICK) as served:
        for count in range(QUICK.restarts + 1):
            served.eventually(lambda: served.heard.readies > len(served.heard.restarts))
            assert len(served.heard.restarts) == count
            served.kill_worker()
            served.eventually(lambda count=count: len(served.heard.restarts) > count or served.ended.done())
        with pytest.raises(WorkerError):
            served.ended.result(30)


# ---- the start -----------------------------------------------------------------------------------------------------
def test_an_early_request_is_held_until_the_server_is_ready() -> None:
    with serving(hello(start_delay=0.5), ready=False) as served:
        assert ask(served.url, "/health").json == {"status": "starting"}
        assert ask(served.url, CHAT, chat()).status == 200
        assert served.heard.readies == 1


def test_a_held_request_waits_only_for_what_it_needs_and_health_for_all_self_tests() -> None:
    script = hello(testing=asyncio.Event())
    with serving(script, ready=False) as served:
        assert ask(served.url, CHAT, chat()).status == 200
        health = ask(served.url, "/health")
        assert (health.status, health.json, served.heard.readies) == (503, {"status": "testing"}, 0)
        served.loop.call_soon_threadsafe(script.testing.set)
        served.eventually(lambda: ask(served.url, "/health").status == 200)
        assert served.heard.readies == 1


def test_a_held_request_is_refused_when_the_start_fails_and_the_error_is_the_workers() -> None:
    script = hello(start_delay=0.3, fails=Failed("OutOfMemoryError", "d", "f", "r", "h"))
    with serving(script, ready=False) as served, ThreadPoolExecutor(1) as pool:
        held = pool.submit(ask, served.url, CHAT, chat())
        with pytest.raises(OutOfMemoryError) as caught:
            served.ended.result(30)
        assert caught.value.found == "f"
        assert held.result(30).status == 503


def test_another_core_in_the_worker_ends_the_server() -> None:
    with serving(hello(digest="e" * 64), ready=False) as served, pytest.raises(TamperedError):
        served.ended.result(30)


def test_an_error_of_the_front_itself_ends_the_server() -> None:
    broken: Future[Any] = Future()
    broken.set_exception(TamperedError("reading", found="f", required="r", hint="h"))
    with serving(hello(), core=broken, ready=False) as served, pytest.raises(TamperedError):
        served.ended.result(30)
    broken = Future()
    broken.set_result(face())
    with serving(hello(), core=broken) as served:
        assert ask(served.url, CHAT, chat()).status == 200


def test_phases_of_the_start_are_told_and_shown() -> None:
    with serving(hello()) as served:
        assert served.heard.phases == {"front/text": 1, "map": 1_000_000, "self-tests": 2_000_000}
        assert b'heliograph_startup_phase_seconds{phase="map"} 0.001' in ask(served.url, "/metrics").body


# ---- the end -------------------------------------------------------------------------------------------------------
def test_running_requests_end_and_new_ones_are_refused_while_the_server_drains() -> None:
    with serving(hello(interval=0.05)) as served, ThreadPoolExecutor(1) as pool:
        running = pool.submit(ask, served.url, CHAT, chat(stream=True))
        served.eventually(lambda: len(served.told.launches) > 1)
        served.stop()
        served.eventually(lambda: served.heard.drained == 1)
        late = ask(served.url, CHAT, chat())
        assert (late.status, late.headers["connection"]) == (503, "close")
        assert ask(served.url, "/tokenize", {"prompt": "a"}).status == 503
        assert ask(served.url, "/health").json == {"status": "draining"}
        assert running.result(30).events[-1]["choices"][0]["finish_reason"] == "stop"
        assert served.ended.result(30) is None
    assert served.heard.restarts == []


def test_what_does_not_end_in_time_is_cancelled_with_an_error() -> None:
    script = Script(line=lambda submit, place: Line(ids("x" * 400)), interval=0.02)
    with serving(script, shutdown=0.2) as served, ThreadPoolExecutor(2) as pool:
        stream, other = (
            pool.submit(ask, served.url, CHAT, chat(stream=True)),
            pool.submit(ask, served.url, CHAT, chat()),
        )
        served.eventually(lambda: len(served.told.launches) > 3)
        served.stop()
        assert "error" in stream.result(30).events[-1]
        assert other.result(30).status == 503
        assert served.ended.result(30) is None


def test_a_second_signal_ends_it_now() -> None:
    script = Script(line=lambda submit, place: Line(ids("x" * 400)), interval=0.02)
    with serving(script, shutdown=3600) as served, ThreadPoolExecutor(1) as pool:
        stream = pool.submit(ask, served.url, CHAT, chat(stream=True))
        served.eventually(lambda: len(served.told.launches) > 3)
        served.stop()
        served.eventually(lambda: served.heard.drained == 1)
        served.stop()
        assert "error" in stream.result(30).events[-1]
        assert served.ended.result(30) is None


def test_an_idle_server_ends_at_once_and_leaves_no_thread() -> None:
    before = threading.active_count()
    with serving(hello(), shutdown=3600) as served:
        assert ask(served.url, CHAT, chat()).status == 200
        served.stop()
        assert served.ended.result(30) is None
    assert threading.active_count() <= before
