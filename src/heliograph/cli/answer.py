"""An answer as a server streams it: pieces of text as they come, then what it took. Standard library only.

Any server that speaks ``POST /v1/chat/completions`` will do. Every wait is bounded, and a stream that ends without its
end mark is an error, never a short answer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from heliograph.errors import AnswerError, UnreachableError, UsageError

CONNECT = 5.0  # seconds
SILENCE = 180.0  # seconds without a byte; a server that is starting holds a request for up to 120
MAX_LINE = 1 << 20  # bytes of one line of a stream
MAX_BODY = 1 << 20  # bytes that are read of an error or a list
OUTPUT = "see the server's output and its /health"
EVENTS = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Server:
    """Where a server is."""

    secure: bool
    host: str
    port: int
    path: str  # in front of /v1, without a slash at its end

    @classmethod
    def at(cls, url: str) -> Server:
        """``http://host:port``, with or without ``/v1``; ``host:port`` means http."""
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise UsageError(
                "reading the address of a server", found=repr(url), required="http://HOST:PORT or https://HOST:PORT",
                hint="write for example http://127.0.0.1:8000",
            )  # fmt: skip
        secure = parts.scheme == "https"
        path = parts.path.rstrip("/").removesuffix("/v1")
        return cls(secure, parts.hostname, port or (443 if secure else 80), path)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'http'}://{host}:{self.port}{self.path}"

    def connect(self) -> HTTPConnection:
        kind = HTTPSConnection if self.secure else HTTPConnection
        connection = kind(self.host, self.port, timeout=CONNECT)
        try:
            connection.connect()
        except OSError as error:
            raise UnreachableError(
                f"connecting to {self}", found=error.strerror or str(error), required="a server that listens there",
                hint="start one: heliograph serve CORE; or give its address",
            ) from error  # fmt: skip
        connection.sock.settimeout(SILENCE)
        return connection

    def only_model(self) -> str:
        """The name of the one model that the server has. A server that is starting answers when it is ready."""
        connection = self.connect()
        try:
            connection.request("GET", f"{self.path}/v1/models")
            response = connection.getresponse()
            body = response.read(MAX_BODY)
            if response.status != 200:
                raise self.refused(response, body)
            names = [str(model["id"]) for model in json.loads(body)["data"]]
        except (OSError, HTTPException) as error:
            raise self.wrong(f"the connection lost ({error})") from error
        except (ValueError, TypeError, KeyError) as error:
            raise self.wrong("something else than a list of models") from error
        finally:
            connection.close()
        if len(names) != 1:
            raise UsageError(
                f"choosing a model of {self}", found=", ".join(names) or "no model", required="exactly one",
                hint="name one: --model NAME",
            )  # fmt: skip
        return names[0]

    def refused(self, response: HTTPResponse, body: bytes) -> AnswerError:
        try:
            text = message_of(json.loads(body))
        except ValueError:
            text = f"a body of type {response.headers.get_content_type()}"
        return self.wrong(f"status {response.status}: {text}", next_step(response.status))

    def wrong(self, found: str, hint: str = OUTPUT) -> AnswerError:
        return AnswerError(f"asking {self}", found=found, required="an answer in the OpenAI dialect", hint=hint)


class Answer:
    """One answer. Iterating over it sends the request and gives the pieces of text; afterwards the rest is known."""

    def __init__(self, server: Server, request: Mapping[str, object]) -> None:
        """``request``: of the chat dialect; it is made a streaming one with usage."""
        self.id = self.model = self.finish_reason = self.text = ""
        self.usage: dict[str, Any] = {}
        self.sent_ns = self.first_ns = self.last_ns = 0  # on the monotonic clock, which a machine's processes share
        self._server = server
        self._body = json.dumps({**request, "stream": True, "stream_options": {"include_usage": True}}).encode()
        self._connection: HTTPConnection | None = None

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the connection, at which a server stops answering."""
        if self._connection is not None:
            self._connection.close()

    def __iter__(self) -> Iterator[str]:
        self._connection = connection = self._server.connect()
        self.sent_ns = time.monotonic_ns()
        try:
            headers = {"Content-Type": "application/json", "Accept": EVENTS}
            connection.request("POST", f"{self._server.path}/v1/chat/completions", self._body, headers)
            response = connection.getresponse()
            if response.status != 200 or response.headers.get_content_type() != EVENTS:
                raise self._server.refused(response, response.read(MAX_BODY))
            for data in events(response):
                if data == b"[DONE]":
                    return
                yield from self._take(data)
        except (OSError, HTTPException) as error:
            raise self._broken(error) from error
        raise self._broken("closed by the server")

    @property
    def tokens(self) -> int:
        return int(self.usage.get("completion_tokens", 0))

    @property
    def tokens_per_second(self) -> float:
        """Of the tokens after the first, from the first piece of text to the last."""
        return max(0, self.tokens - 1) / max(1, self.last_ns - self.first_ns) * 1e9

    def _take(self, data: bytes) -> Iterator[str]:
        try:
            chunk = json.loads(data)
            if "error" in chunk:
                raise self._server.wrong(f"the answer broken off: {message_of(chunk)}")
            self.id, self.model = chunk["id"], chunk["model"]
            self.usage = chunk.get("usage") or self.usage
            for choice in chunk["choices"]:
                self.finish_reason = choice.get("finish_reason") or self.finish_reason
                if text := choice["delta"].get("content"):
                    self.last_ns = time.monotonic_ns()
                    self.first_ns = self.first_ns or self.last_ns
                    self.text += text
                    yield text
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._server.wrong(f"{data[:200]!r} in the stream") from error

    def _broken(self, why: object) -> AnswerError:
        return self._server.wrong(f"the connection lost ({why}) before the end of the answer")


def events(response: HTTPResponse) -> Iterator[bytes]:
    """The data of each event of a stream, comments left out (the part of the standard that such servers use)."""
    parts: list[bytes] = []
    while line := response.readline(MAX_LINE):
        line = line.rstrip(b"\r\n")
        if line.startswith(b"data:"):
            parts.append(line[5:].removeprefix(b" "))
        elif not line and parts:
            yield b"\n".join(parts)
            parts = []


def next_step(status: int) -> str:
    """What somebody does about an answer with this status that is no answer."""
    if status in (429, 503):
        return "this passes: try again in a moment"
    if status == 404:
        return "name a model that the server's /v1/models lists, or leave --model out; check the address"
    if status < 400:
        return "check the address: it is one of a server that has /v1/chat/completions"
    return "change the request as the message says" if status < 500 else OUTPUT


def message_of(body: Any) -> str:
    """What an error's body says, in any of the forms in use."""
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)[:1000]
