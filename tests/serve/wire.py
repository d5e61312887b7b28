"""HTTP by hand, where a client library would hide or repair something."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

PATIENCE = 30.0


@dataclass(frozen=True)
class Response:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Mapping[str, Any]:
        """Of an error in the dialect; its form is checked."""
        assert set(self.json) == {"error"}
        assert set(self.json["error"]) == {"message", "type", "param", "code"}
        return self.json["error"]

    @property
    def events(self) -> list[Any]:
        """The data of a stream's events, which must end with [DONE]."""
        lines = [line for line in self.body.decode().split("\n\n") if line and not line.startswith(":")]
        assert all(line.startswith("data: ") for line in lines)
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def ask(
    url: str, path: str, body: Any = None, *, method: str = "", headers: Mapping[str, str] | None = None
) -> Response:  # fmt: skip
    """One request on a connection of its own. A body that is not bytes is sent as JSON."""
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE)
    try:
        connection.request(method or ("GET" if data is None else "POST"), path, data, dict(headers or {}))
        answer = connection.getresponse()
        return Response(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def connect(url: str, *, receive: int = 0) -> socket.socket:
    """A bare connection; ``receive`` sets the size of its receive buffer."""
    parts = urlsplit(url)
    made = socket.socket()
    made.settimeout(PATIENCE)
    if receive:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    made.connect((parts.hostname, parts.port))
    return made


def post(path: str, body: Any) -> bytes:
    """The bytes of a request."""
    data = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data


def read_all(connection: socket.socket) -> bytes:
    """Until the other side closes, in good order or not."""
    data = b""
    try:
        while part := connection.recv(1 << 16):
            data += part
    except ConnectionResetError:
        pass
    return data
