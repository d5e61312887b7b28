"""Every limit of the table fires when it is reached, and not before."""

from __future__ import annotations

import gc
import socket
import threading
import time
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from scripted_worker import LOADED, Line, Script
from served import face, ids, serving
from tokenizers import Tokenizer
from wire import ask, connect, post, read_all

from heliograph.runtime import text
from heliograph.runtime.text import Text
from heliograph.serve.frames import MAX_PROMPT, Submit
from heliograph.serve.front import generate
from heliograph.serve.front.body import read_body
from heliograph.serve.front.journal import Work
from heliograph.serve.front.openai_request import Plan
from heliograph.serve.front.start import raise_descriptors
from heliograph.serve.limits import Limits

CHAT = "/v1/chat/completions"
TESTS = Path(__file__).parent.parent

# Where each limit is tested: a test here or elsewhere below tests/serve.
TESTED = {
    "body": "test_a_body_is_taken_up_to_its_bound",
    "header": "test_a_head_is_taken_up_to_its_bound",
    "messages": "test_a_list_is_taken_up_to_its_bound",
    "stops": "test_a_list_is_taken_up_to_its_bound",
    "stop_length": "test_a_list_is_taken_up_to_its_bound",
    "stop_tokens": "test_a_list_is_taken_up_to_its_bound",
    "biases": "test_a_list_is_taken_up_to_its_bound",
    "prompts": "test_prompts_are_taken_up_to_their_bound",
    "encode": "test_a_prompt_that_takes_too_long_to_encode_is_given_up",
    "body_wait": "test_a_body_that_does_not_come_is_not_waited_for",
    "waiting": "test_more_requests_than_may_wait_are_refused",
    "bodies": "test_more_bytes_than_may_wait_are_refused",
    "rows": "test_more_rows_than_may_wait_are_refused",
    "unread": "test_a_worker_that_takes_nothing_gets_no_more",
    "hold": "test_a_request_is_held_only_so_long",
    "stall": "test_a_client_that_takes_nothing_is_dropped",
    "keep_alive": "test_an_idle_connection_is_closed",
    "connections": "test_more_connections_than_may_be_are_closed",
    "ping": "test_a_silent_stream_has_comments",
    "start": "test_a_start_that_takes_too_long_is_ended",
    "silence": "test_a_worker_that_says_nothing_while_rows_are_under_way_is_killed",
    "shutdown": "test_what_does_not_end_in_time_is_cancelled_with_an_error",
    "stop": "test_a_worker_that_does_not_end_when_told_is_killed",
    "restarts": "test_a_worker_that_ends_too_often_ends_the_server",
    "restart_window": "test_deaths_long_ago_do_not_count",
    "unsent": "test_what_the_front_does_not_take_is_kept_in_order_up_to_the_bound",
    "rounds_between_builds": "test_under_steady_load_every_bucket_is_built_one_in_a_stated_number_of_rounds",
    "quiet": "test_rows_that_come_soon_do_not_wait_for_a_build",
    "early": "test_self_tests_go_on_once_early_clients_have_been_heard_and_at_once_after_a_restart",
}


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]} | fields


def hello(**more: Any) -> Script:
    return Script(line=lambda submit, place: Line(ids("Hello")), **more)


def test_every_limit_has_a_test() -> None:
    assert {each.name for each in msgspec.structs.fields(Limits)} == TESTED.keys()
    source = "".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    assert [name for name in TESTED.values() if f"def {name}(" not in source] == []


def test_every_limit_is_positive() -> None:
    values = msgspec.structs.asdict(Limits())
    assert all(value > 0 for value in values.values())


# ---- a request -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_is_taken_up_to_its_bound(chunked: bool) -> None:
    body = post("/", chat()).partition(b"\r\n\r\n")[2]

    def send(data: bytes) -> int:
        head = b"transfer-encoding: chunked" if chunked else b"content-length: %d" % len(data)
        framed = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if chunked else data
        with connect(served.url) as connection:
            connection.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n%b\r\n\r\n" % head
            )
            connection.sendall(framed)
            return int(read_all(connection).split()[1])

    with serving(hello(), limits=Limits(body=1000)) as served:
        assert send(body.ljust(1000)) == 200
        assert send(body.ljust(1001)) == 413
        assert ask(served.url, "/tokenize", b" " * 1001).status == 413


def test_a_head_is_taken_up_to_its_bound() -> None:
    with serving(hello(), limits=Limits(header=2000)) as served:
        assert ask(served.url, "/health", headers={"x-a": "a" * 1500}).status == 200
        assert ask(served.url, "/health", headers={"x-a": "a" * 2500}).status == 431
        assert ask(served.url, f"/{'a' * 2500}").status == 431
        with connect(served.url) as connection:  # one that never ends
            connection.sendall(b"GET /health HTTP/1.1\r\nx-a: ")
            for _ in range(30):
                try:
                    connection.sendall(b"a" * 100)
                except (BrokenPipeError, ConnectionResetError):
                    break
                time.sleep(0.002)
            assert b" 431 " in read_all(connection)
        assert ask(served.url, "/health").status == 200


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    with serving(hello(), limits=Limits(body_wait=0.2)) as served, connect(served.url) as connection:
        connection.sendall(post(CHAT, chat())[:-5])
        assert connection.recv(100).startswith(b"HTTP/1.1 408")


class SlowText(Text):
    """Renders when it is let go."""

    go = threading.Event()

    def __init__(self) -> None:
        self.__dict__.update(face().text.__dict__)

    def encode_chat(self, *given: Any, **more: Any) -> list[int]:
        self.go.wait(30)
        return super().encode_chat(*given, **more)


def test_a_prompt_that_takes_too_long_to_encode_is_given_up() -> None:
    slow = msgspec.structs.replace(face(), text=SlowText())
    with serving(hello(), limits=Limits(encode=0.2), core=slow) as served:
        answer = ask(served.url, CHAT, chat())
        assert (answer.status, "retry-after-ms" in answer.headers) == (503, True)
        SlowText.go.set()
        assert ask(served.url, CHAT, chat()).status == 200


LONG: list[tuple[str, Callable[[str], dict[str, Any]]]] = [
    (CHAT, lambda text: {"messages": [{"role": "user", "content": text}]}),
    ("/v1/completions", lambda text: {"prompt": text}),
    ("/v1/completions", lambda text: {"prompt": ["a", text]}),
    ("/tokenize", lambda text: {"prompt": text}),
]


@pytest.mark.parametrize(("path", "body"), LONG)
def test_a_text_that_no_context_holds_is_refused_before_it_is_encoded(
    path: str, body: Callable[[str], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest token has 13 characters, the context 512 tokens."""
    encoded: list[str] = []
    encode = text._encode

    def heard(tokenizer: Tokenizer, whole: str, *, around: bool) -> list[int]:
        encoded.append(whole)
        return encode(tokenizer, whole, around=around)

    monkeypatch.setattr(text, "_encode", heard)
    with serving(hello()) as served:
        answer = ask(served.url, path, {"model": "tiny"} | body("x" * (511 * 13 + 1)))
        assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
        assert "512" in answer.error["message"]
        assert answer.headers["x-should-retry"] == "false"
        assert encoded == []
        ask(served.url, path, {"model": "tiny"} | body("x" * (511 * 13 - 100)))
        assert encoded


def test_while_a_prompt_is_rendered_others_are_answered() -> None:
    """No tokenizer and no template runs in the event loop."""
    SlowText.go.clear()
    slow = msgspec.structs.replace(face(), text=SlowText())
    with serving(hello(), core=slow) as served, ThreadPoolExecutor(1) as pool:
        waits = pool.submit(ask, served.url, CHAT, chat())
        assert ask(served.url, "/v1/completions", {"model": "tiny", "prompt": [5]}).status == 200
        assert not waits.done()
        SlowText.go.set()
        assert waits.result(30).status == 200


# ---- the queue -----------------------------------------------------------------------------------------------------
def test_more_requests_than_may_wait_are_refused() -> None:
    script = Script(line=lambda submit, place: Line(ids("x" * 100)), interval=0.01)
    with serving(script, limits=Limits(waiting=2)) as served, ThreadPoolExecutor(2) as pool:
        running = [pool.submit(ask, served.url, CHAT, chat()) for _ in range(2)]
        served.eventually(lambda: len(served.told.submits) == 2)
        answer = ask(served.url, CHAT, chat())
        assert (answer.status, answer.error["type"]) == (503, "server_error")
        assert {"retry-after", "retry-after-ms"} <= answer.headers.keys()
        assert ask(served.url, "/tokenize", {"prompt": "a"}).status == 503
        assert ask(served.url, "/detokenize", {"tokens": [5]}).status == 503
        assert ask(served.url, "/health").status == 200
        assert [each.result(30).status for each in running] == [200, 200]
        assert ask(served.url, CHAT, chat()).status == 200


def test_more_bytes_than_may_wait_are_refused() -> None:
    script = Script(line=lambda submit, place: Line(ids("x" * 100)), interval=0.01)
    large = chat() | {"user": "u" * 400}
    with serving(script, limits=Limits(bodies=1200)) as served, ThreadPoolExecutor(2) as pool:
        running = [pool.submit(ask, served.url, CHAT, large) for _ in range(2)]
        served.eventually(lambda: len(served.told.submits) == 2)
        answer = ask(served.url, CHAT, large)
        assert (answer.status, "retry-after-ms" in answer.headers) == (503, True)
        assert ask(served.url, "/tokenize", {"prompt": "a" * 400}).status == 503
        assert [each.result(30).status for each in running] == [200, 200]
        assert ask(served.url, CHAT, large).status == 200


class Kept(bytes):
    """A body that says when it is let go."""

    alive = 0

    def __init__(self, _: bytes) -> None:
        Kept.alive += 1

    def __del__(self) -> None:
        Kept.alive -= 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("body", [chat(), {"model": "tiny", "prompt": "a"}])
def test_what_was_asked_is_let_go_once_it_is_tokens(
    monkeypatch: pytest.MonkeyPatch, body: dict[str, Any], stream: bool
) -> None:
    """What stays of a large body while it is answered is 4 bytes a token."""

    async def read(*given: Any) -> Kept:
        return Kept(await read_body(*given))

    def new(kind: type) -> list[Any]:
        return [each for each in gc.get_objects() if type(each) is kind and id(each) not in before]

    before = {id(each): each for each in gc.get_objects() if type(each) in (Plan, Work)}
    monkeypatch.setattr(generate, "read_body", read)
    script = Script(line=lambda submit, place: Line(ids("x" * 1000)), interval=0.02)
    path = CHAT if "messages" in body else "/v1/completions"
    with serving(script) as served, connect(served.url) as client:
        client.sendall(post(path, body | {"stream": stream, "max_tokens": 400}))
        served.eventually(lambda: len(served.told.launches) > 1)
        assert (Kept.alive, new(Plan)) == (0, [])
        assert [(type(work.prompt), work.prompt.itemsize) for work in new(Work)] == [(array, 4)]
        assert served.told.under_way


@pytest.mark.parametrize("stream", [False, True])
def test_more_rows_than_may_wait_are_refused(stream: bool) -> None:
    script = Script(line=lambda submit, place: Line(ids("x" * 100)), interval=0.01)
    text = {"model": "tiny", "prompt": ["a", "b"], "max_tokens": 100}
    with serving(script, limits=Limits(rows=5)) as served, ThreadPoolExecutor(2) as pool:
        running = [pool.submit(ask, served.url, CHAT, chat(n=2)), pool.submit(ask, served.url, "/v1/completions", text)]
        served.eventually(lambda: len(served.told.submits) == 3)
        for path, body in ((CHAT, chat(n=2)), ("/v1/completions", text)):
            answer = ask(served.url, path, body | {"stream": stream})
            assert (answer.status, answer.error["type"]) == (503, "server_error")
            assert {"retry-after", "retry-after-ms"} <= answer.headers.keys()
        assert ask(served.url, CHAT, chat(stream=stream)).status == 200
        assert [each.result(30).status for each in running] == [200, 200]
        assert ask(served.url, CHAT, chat(n=2, stream=stream)).status == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_worker_that_takes_nothing_gets_no_more(stream: bool) -> None:
    """Answers under way go on, and clients may leave."""

    def line(submit: Submit, place: int) -> Line:
        return Line([5] * (300 if len(submit.prompt) < 100 else 1))

    script = Script(line=line, interval=0.01, loaded=msgspec.structs.replace(LOADED, blocks=MAX_PROMPT))
    core = msgspec.structs.replace(face(), facts=msgspec.structs.replace(face().facts, context=MAX_PROMPT))
    large = {"model": "tiny", "prompt": [258] * 100_000, "stream": stream}
    with serving(script, limits=Limits(unread=1 << 20), core=core) as served, ThreadPoolExecutor(1) as pool:
        running = pool.submit(ask, served.url, CHAT, chat(stream=True))
        served.eventually(lambda: len(served.told.launches) > 1)
        script.deaf = True
        clients = []
        for _ in range(8):
            client = connect(served.url)
            clients.append(client)
            client.sendall(post("/v1/completions", large))
            client.settimeout(0.5)
            try:
                head = client.recv(1000)
            except TimeoutError:
                continue
            break
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: " in head
        assert 4 <= len(clients) < 8  # of 300 kB each, some of which the socket took
        answer = ask(served.url, CHAT, chat(stream=stream))
        assert (answer.status, "retry-after-ms" in answer.headers) == (503, True)
        for client in clients:
            client.close()
        assert len(running.result(30).events) > 300
        script.deaf = False
        served.eventually(lambda: ask(served.url, CHAT, chat(max_tokens=1)).status == 200)
        served.eventually(lambda: len(served.told.cancelled) >= len(clients) - 1)


def test_a_request_is_held_only_so_long() -> None:
    with serving(hello(start_delay=1.0), limits=Limits(hold=0.2), ready=False) as served:
        answer = ask(served.url, CHAT, chat())
        assert (answer.status, "retry-after-ms" in answer.headers) == (503, True)
        served.eventually(lambda: served.heard.readies == 1)
        assert ask(served.url, CHAT, chat()).status == 200


# ---- a connection --------------------------------------------------------------------------------------------------
def test_a_client_that_takes_nothing_is_dropped() -> None:
    """And another client is served meanwhile."""
    script = Script(line=lambda submit, place: Line(ids("x" * 400)), interval=0.005)
    with serving(script, limits=Limits(stall=0.3), send_buffer=4096) as served:
        with connect(served.url, receive=4096) as slow:
            long = b"\r\nx-request-id: " + b"i" * 128 + b"\r\nhost"  # is in every chunk
            slow.sendall(post(CHAT, chat(stream=True, n=8)).replace(b"\r\nhost", long))
            served.eventually(lambda: len(served.told.launches) > 8)
            assert ask(served.url, CHAT, chat(max_tokens=5)).status == 200
            served.eventually(lambda: len(served.told.cancelled) == 8)
            data = read_all(slow)
        assert b"[DONE]" not in data
        assert ask(served.url, CHAT, chat(max_tokens=1)).status == 200


def test_a_slow_client_within_the_limit_gets_all() -> None:
    script = Script(line=lambda submit, place: Line(ids("x" * 400)))
    with serving(script, send_buffer=4096) as served, connect(served.url, receive=4096) as slow:
        slow.sendall(post(CHAT, chat(stream=True)).replace(b"\r\nhost", b"\r\nconnection: close\r\nhost"))
        data = b""
        while part := slow.recv(4096):
            data += part
            time.sleep(0.002)
    assert data.count(b'"content":"x') > 0
    assert b"[DONE]" in data


IDLE: dict[str, Callable[[socket.socket], object]] = {
    "nothing was said": lambda connection: None,
    "a head began": lambda connection: connection.sendall(b"GET /health HTTP/1.1\r\nx-a: b\r\n"),
    "an answer was read": lambda connection: (
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"),
        connection.recv(1000),
    ),
    "another head began": lambda connection: (
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"),
        connection.recv(1000),
        connection.sendall(b"GET /health HTTP/1.1\r\nx-a"),
    ),
}


@pytest.mark.parametrize("how", IDLE)
def test_an_idle_connection_is_closed(how: str) -> None:
    with serving(hello(), limits=Limits(keep_alive=1.0)) as served, connect(served.url) as connection:
        IDLE[how](connection)
        assert read_all(connection) == b""


def test_a_connection_that_is_not_idle_stays_open() -> None:
    with serving(hello(), limits=Limits(keep_alive=1.0)) as served, connect(served.url) as connection:
        for _ in range(5):
            time.sleep(0.3)
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")


def test_an_answer_may_take_longer_than_any_limit() -> None:
    """R31: none of the table's times, which are all cut to a second here, is a bound on an answer."""
    times = [each.name for each in msgspec.structs.fields(Limits) if each.type is float and each.name != "start"]
    assert {"keep_alive", "stall", "silence", "hold", "body_wait"} <= set(times)
    script = Script(line=lambda submit, place: Line(ids("x" * 50)), interval=0.05)
    with serving(script, limits=Limits(**dict.fromkeys(times, 1.0))) as served, ThreadPoolExecutor(2) as pool:
        began = time.monotonic()
        whole, stream = (pool.submit(ask, served.url, CHAT, chat(stream=stream)) for stream in (False, True))
        assert whole.result(30).json["usage"]["completion_tokens"] == 50
        said = (event["choices"][0]["delta"].get("content") or "" for event in stream.result(30).events)
        assert "".join(said) == "x" * 50
        assert time.monotonic() - began > 2.0


def test_more_connections_than_may_be_are_closed() -> None:
    with serving(hello(), limits=Limits(connections=3)) as served:
        kept = [connect(served.url) for _ in range(3)]
        with connect(served.url) as one_more:
            assert read_all(one_more) == b""
        kept.pop().close()
        served.eventually(lambda: _answered(served.url))
        for connection in kept:
            connection.close()


def _answered(url: str) -> bool:
    try:
        return ask(url, "/health").status == 200
    except ConnectionError:
        return False


def test_2000_idle_connections_are_no_trouble() -> None:
    raise_descriptors()
    with serving(hello()) as served:
        idle = [connect(served.url) for _ in range(2000)]
        assert ask(served.url, CHAT, chat()).status == 200
        assert ask(served.url, CHAT, chat(stream=True)).events
        for connection in idle[::400]:
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        for connection in idle:
            connection.close()


def test_a_silent_stream_has_comments() -> None:
    script = Script(line=lambda submit, place: Line(ids("abc")), interval=0.5)
    with serving(script, limits=Limits(ping=0.1)) as served:
        answer = ask(served.url, CHAT, chat(stream=True))
        assert answer.body.startswith(b": ping\n\n")
        assert answer.body.count(b": ping\n\n") >= 3
        assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in answer.events) == "abc"
        quick = ask(served.url, CHAT, chat())
        assert quick.json["choices"][0]["message"]["content"] == "abc"
