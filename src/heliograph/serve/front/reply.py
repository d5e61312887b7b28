"""One response: its status is decided with the first byte, and a client that takes nothing is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from heliograph.serve.front.openai_answer import error_body, error_event
from heliograph.serve.front.refusal import Refusal

if TYPE_CHECKING:
    from starlette.types import Message, Scope, Send

STREAM = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))
JSON = ((b"content-type", b"application/json"),)
MAX_NAMES, MAX_NAME = 16, 64  # of ignored fields in the header


class Reply:
    def __init__(self, scope: Scope, send: Send, stall: float) -> None:
        self._scope, self._send, self._stall = scope, send, stall
        self._headers: list[tuple[bytes, bytes]] = []
        self._streaming = self._ended = False

    def name_ignored(self, fields: Sequence[str]) -> None:
        """A header with the fields of the request that were ignored."""
        names = [_printable(field[:MAX_NAME]) for field in fields[:MAX_NAMES]]
        if names:
            self._headers.append((b"x-heliograph-ignored", ", ".join(names).encode()))

    async def stream(self, data: bytes) -> None:
        """Sends events; the first ones decide the status."""
        if not self._streaming:
            self._streaming = True
            await self._start(200, STREAM)
        await self._put({"type": "http.response.body", "body": data, "more_body": True})

    async def end_stream(self, data: bytes) -> None:
        self._ended = True
        await self._put({"type": "http.response.body", "body": data, "more_body": False})

    async def whole(self, status: int, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        self._ended = True
        more = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        await self._start(status, (*JSON, (b"content-length", b"%d" % len(data)), *more))
        await self._put({"type": "http.response.body", "body": data, "more_body": False})

    async def refuse(self, refusal: Refusal, headers: Mapping[str, str] | None = None) -> None:
        """An error: its status if nothing was sent yet, else an event and the end of the stream."""
        if self._streaming and not self._ended:
            await self.end_stream(error_event(refusal))
        elif not self._ended:
            await self.whole(
                refusal.status, msgspec.json.encode(error_body(refusal)), {**refusal.headers, **(headers or {})}
            )

    async def _start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        message = {"type": "http.response.start", "status": status, "headers": [*headers, *self._headers]}
        await self._put(message)

    async def _put(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._stall):
                await self._send(message)
        except TimeoutError:
            abort = self._scope["state"].get("abort")  # set by ``connection``
            if abort is not None:
                abort()
            raise Refusal(408, "the client takes nothing") from None


def _printable(name: str) -> str:
    """As it may stand in a header."""
    return "".join(character if "!" <= character <= "~" and character != "," else "?" for character in name)
