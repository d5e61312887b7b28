"""A server whose answers are written down: what a client sends is kept, what it gets is given byte for byte."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

LIMIT = 30.0  # seconds of any wait
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


class UntilClientLeaves:
    """A step of a script: nothing more is said until the client closes."""


Step = bytes | UntilClientLeaves


@dataclass(slots=True)
class Script:
    """What the server says, a list of steps for each question in turn, and what it was asked."""

    answers: Iterator[list[Step]]
    port: int = 0
    requests: list[dict[str, Any]] = field(default_factory=list)
    asked: threading.Event = field(default_factory=threading.Event)
    left: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def chunked(*data: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in data)


DONE = chunked(b"data: [DONE]\n\n") + END


def event(**fields: object) -> bytes:
    chunk = {"id": "chatcmpl-1", "model": "scripted", "object": "chat.completion.chunk", "choices": [], **fields}
    return chunked(b"data: " + json.dumps(chunk).encode() + b"\n\n")


def piece(text: str | None = None, finish: str | None = None, **more: object) -> bytes:
    delta = {} if text is None else {"content": text}
    return event(choices=[{"index": 0, "delta": {**delta, **more}, "finish_reason": finish}])


def usage(tokens: int) -> bytes:
    return event(usage={"prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": 3 + tokens})


def whole(*texts: str, finish: str = "stop") -> list[Step]:
    """A stream as it should be: role, pieces, finish reason, usage, end mark."""
    return [STREAM, piece(role="assistant"), *map(piece, texts), piece(finish=finish), usage(len(texts)), DONE]


def refusal(status: int, **error: object) -> list[Step]:
    return [document(status, {"error": error})]


def document(status: int, value: object) -> bytes:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@contextmanager
def serving(*answers: Iterable[Step], models: Sequence[str] = ("scripted",)) -> Iterator[Script]:
    """Asked for its models, it names these; every other request is given the next answer."""
    script = Script(iter([list(answer) for answer in answers]))

    class Handler(socketserver.StreamRequestHandler):
        timeout = LIMIT

        def handle(self) -> None:
            if self.rfile.readline().startswith(b"GET /v1/models "):
                self.wfile.write(document(200, {"object": "list", "data": [{"id": name} for name in models]}))
                return
            length = 0
            for line in iter(self.rfile.readline, b"\r\n"):
                name, _, value = line.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
            script.requests.append(json.loads(self.rfile.read(length)))
            script.asked.set()
            for step in next(script.answers):
                if isinstance(step, bytes):
                    self.wfile.write(step)
                elif not self.rfile.read(1):
                    script.left.set()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        script.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield script
        finally:
            server.shutdown()
            thread.join(LIMIT)
