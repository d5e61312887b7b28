"""One client for every server: asks as soon as somebody listens, and keeps when each piece of content came."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from typing import Any

from heliograph.cli.answer import events

LIMIT = 120.0  # seconds of one request, attempts included
STEP = 0.001  # seconds between two attempts
PATHS = {"messages": "/v1/chat/completions", "prompt": "/v1/completions"}


@dataclass(slots=True)
class Seen:
    """What a client saw of one request. Times are nanoseconds of the monotonic clock."""

    listening_ns: int = 0  # the first attempt that was not refused by the system
    ready_ns: int = 0  # the last answer that said 503; 0 if none did
    sent_ns: int = 0  # the attempt that was answered
    pieces: list[int] = field(default_factory=list)  # when each piece of content came; a role is none
    text: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict)


def ask(port: int, request: Mapping[str, object]) -> Seen:
    """One streamed request of either dialect, to its end."""
    try:
        return exchange(port, request)
    except (OSError, HTTPException) as error:
        raise SystemExit(f"port {port}: the server is gone or says nothing: {error!r}") from error


def exchange(port: int, request: Mapping[str, object]) -> Seen:
    seen, end = Seen(), time.monotonic() + LIMIT
    path = next(path for name, path in PATHS.items() if name in request)
    body = json.dumps({**request, "stream": True, "stream_options": {"include_usage": True}}).encode()
    connection = connect(port, end)
    seen.listening_ns = time.monotonic_ns()
    while True:
        seen.sent_ns = time.monotonic_ns()
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status == 200:
            break
        said = response.read()
        if response.status != 503 or time.monotonic() > end:
            raise SystemExit(f"port {port} {path}: status {response.status}: {said[:500]!r}")
        seen.ready_ns = time.monotonic_ns()
        time.sleep(STEP)
    for data in events(response):
        now = time.monotonic_ns()
        if data == b"[DONE]":
            break
        chunk = json.loads(data)
        if "error" in chunk:
            raise SystemExit(f"port {port} {path}: {chunk['error']}")
        seen.usage = chunk.get("usage") or seen.usage
        for choice in chunk["choices"]:
            if piece := choice.get("text") or choice.get("delta", {}).get("content"):
                seen.pieces.append(now)
                seen.text += piece
    connection.close()
    if not seen.pieces:
        raise SystemExit(f"port {port} {path}: an answer without content")
    return seen


def connect(port: int, end: float) -> HTTPConnection:
    """A connection, from the moment that the port is open."""
    while True:
        connection = HTTPConnection("127.0.0.1", port, timeout=LIMIT)
        try:
            connection.connect()
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise SystemExit(f"nothing listens on port {port}") from None
            time.sleep(STEP)
        else:
            return connection
