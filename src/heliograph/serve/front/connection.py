"""Bounds on a connection that uvicorn does not have: how many, how long a head may take, how large it may get."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from heliograph.serve.limits import Limits

TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Connection(HttpToolsProtocol):
    """uvicorn makes one a connection. A head is the request line and the headers of a request."""

    def __init__(self, *arguments: Any, limits: Limits, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._limits = limits
        self._head = 0  # bytes of a head that is not complete
        self._in_body = False
        self._due: asyncio.TimerHandle | None = None  # when the next head must be complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            transport.abort()
        else:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._in_body:
            self._head += len(data)
        if not self._in_body or self.cycle.response_complete:  # the rest of a body that nobody reads comes first
            self._expect_head()
        super().data_received(data)
        if self._head > self._limits.header and not self.transport.is_closing():
            self.transport.write(TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["abort"] = self.transport.abort

    def on_headers_complete(self) -> None:
        self._head_came()
        super().on_headers_complete()
        self._in_body = True

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def timeout_keep_alive_handler(self) -> None:
        """A client that has not even taken its last answer is not waited for."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def _expect_head(self) -> None:
        if self._due is None:
            self._due = self.loop.call_later(self._limits.keep_alive, self._head_is_late)

    def _head_is_late(self) -> None:
        self._due = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()
        else:  # what came during an answer may wait for its end
            self._expect_head()

    def _head_came(self) -> None:
        self._head = 0
        if self._due is not None:
            self._due.cancel()
            self._due = None
