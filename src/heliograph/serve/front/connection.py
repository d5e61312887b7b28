"""Bounds on a connection that uvicorn does not have: how many, how long a head may take, how large it may get."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from heliograph.serve.limits import Limits

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Connection(HttpToolsProtocol):
    """uvicorn makes one a connection. A head is the request line and the headers of a request."""

    def __init__(self, *arguments: Any, limits: Limits, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._limits = limits
        self._head = 0  # bytes of a head that is not complete
        self._in_body = False
        self._answered: RequestResponseCycle | None = None  # uvicorn knows only the request that came last
        self._due: asyncio.TimerHandle | None = None  # when the next head must be complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            transport.abort()
        else:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._answering:
            self.cycle.keep_alive = False
            return
        if not self._in_body:
            self._head += len(data)
        if not self._in_body or self.cycle.response_complete:  # the rest of a body that nobody reads comes first
            self._expect_head()
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self.pipeline:
            self.flow.resume_reading()  # who does not read does not see that the client has gone
        if self._head > self._limits.header:
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

    @property
    def _answering(self) -> bool:
        """A whole request is being answered. What comes meanwhile is read, for only so is it seen that the client
        leaves, and dropped; the connection then ends with the answer, after which HTTP lets clients ask again."""
        return self._answered is not None and not (
            self._answered.response_complete or (self._answered is self.cycle and self._in_body)
        )

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def _expect_head(self) -> None:
        if self._due is None:
            self._due = self.loop.call_later(self._limits.keep_alive, self.transport.abort)

    def _head_came(self) -> None:
        self._head = 0
        if self._due is not None:
            self._due.cancel()
            self._due = None
