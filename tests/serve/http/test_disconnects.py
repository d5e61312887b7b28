"""E5: whoever leaves, at whatever moment, leaves nothing behind."""

from __future__ import annotations

import random
import socket
import struct
import time
from concurrent.futures import Future
from typing import Any

import pytest
from scripted_worker import Line, Script
from served import Served, face, ids, serving
from wire import ask, connect, post

from heliograph.serve.front.face import Face
from heliograph.serve.limits import Limits

CHAT = "/v1/chat/completions"


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]} | fields


def endless(interval: float = 0.001) -> Script:
    return Script(line=lambda submit, place: Line(ids("x" * 400)), interval=interval)


def leave(connection: socket.socket, how: str) -> None:
    if how == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if how == "half":
        connection.shutdown(socket.SHUT_WR)
    else:
        connection.close()


def idle(served: Served) -> bool:
    return not served.told.under_way


@pytest.mark.parametrize("how", ["close", "reset", "half"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_while_it_is_answered_frees_its_rows(how: str, stream: bool) -> None:
    with serving(endless()) as served:
        connection = connect(served.url)
        connection.sendall(post(CHAT, chat(stream=stream, n=3)))
        served.eventually(lambda: len(served.told.under_way) == 3 and len(served.told.launches) > 6)
        leave(connection, how)
        served.eventually(lambda: idle(served))
        assert len(served.told.cancelled) == 3
        connection.close()


def test_a_client_that_leaves_is_cancelled_before_another_token_is_due() -> None:
    """The cancel does not wait for something to send: the worker says nothing more after its first launches."""
    script = Script(line=lambda submit, place: Line(ids("xxxx")), hangs_after=2)
    with serving(script, limits=Limits(silence=600)) as served:
        connection = connect(served.url)
        connection.sendall(post(CHAT, chat(stream=True)))
        served.eventually(lambda: len(served.told.launches) == 2)
        connection.close()
        served.eventually(lambda: idle(served))


def test_a_client_that_leaves_while_it_is_held_is_never_submitted() -> None:
    with serving(Script(line=lambda submit, place: Line(ids("x")), start_delay=0.5), ready=False) as served:
        connection = connect(served.url)
        connection.sendall(post(CHAT, chat()))
        time.sleep(0.1)
        connection.close()
        served.eventually(lambda: served.heard.readies == 1)
        assert ask(served.url, CHAT, chat()).status == 200
        assert len(served.told.submits) == 1


def test_a_client_that_leaves_before_the_tokenizer_is_read_takes_it_from_nobody() -> None:
    late: Future[Face] = Future()
    with serving(Script(line=lambda submit, place: Line(ids("x"))), core=late, ready=False) as served:
        connection = connect(served.url)
        connection.sendall(post(CHAT, chat()))
        time.sleep(0.1)
        connection.close()
        time.sleep(0.1)
        late.set_result(face())
        served.eventually(lambda: served.heard.readies == 1)
        assert ask(served.url, CHAT, chat()).status == 200


def test_a_client_that_leaves_before_its_body_is_whole_is_never_submitted() -> None:
    with serving(endless()) as served:
        with connect(served.url) as connection:
            connection.sendall(post(CHAT, chat())[:-5])
        assert ask(served.url, CHAT, chat(max_tokens=1)).status == 200
        assert len(served.told.submits) == 1


def test_300_requests_cut_at_random_moments_leave_nothing_behind() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    with serving(Script(line=lambda submit, place: Line(ids("x" * draw.randrange(1, 60))), interval=0.0005)) as served:
        open_now: list[socket.socket] = []
        for _ in range(300):
            request = post(CHAT, chat(stream=draw.random() < 0.5, n=draw.randrange(1, 4)))
            connection = connect(served.url)
            connection.sendall(request[: draw.randrange(len(request))] if draw.random() < 0.2 else request)
            open_now.append(connection)
            time.sleep(draw.choice([0, 0, 0.001, 0.01]))
            while open_now and (draw.random() < 0.5 or len(open_now) > 20):
                leave(open_now.pop(draw.randrange(len(open_now))), draw.choice(["close", "reset"]))
        for connection in open_now:
            connection.close()
        served.eventually(lambda: idle(served))
        answer = ask(served.url, CHAT, chat())
        assert answer.status == 200
        metrics = ask(served.url, "/metrics").body.decode()
        emitted = sum(len(gain.tokens) for launch in served.told.launches for gain in launch.gains)
        generated = next(line for line in metrics.splitlines() if line.startswith("heliograph_generated_tokens_total"))
        assert float(generated.split()[1]) <= emitted


def test_another_clients_answer_is_whole_whoever_leaves() -> None:
    with serving(Script(line=lambda submit, place: Line(ids("y" * 100)), interval=0.001)) as served:
        with connect(served.url) as stays:
            stays.sendall(post(CHAT, chat(stream=True)).replace(b"HTTP/1.1\r\n", b"HTTP/1.1\r\nconnection: close\r\n"))
            for _ in range(30):
                with connect(served.url) as leaves:
                    leaves.sendall(post(CHAT, chat(stream=True)))
                    time.sleep(0.002)
            data = b""
            while part := stays.recv(1 << 16):
                data += part
        assert data.count(b'"content":"y"') == 100
        assert b"[DONE]" in data
