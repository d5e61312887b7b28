"""A request's body, bounded in bytes and in time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from heliograph.serve.front.refusal import Refusal
from heliograph.serve.limits import Limits

if TYPE_CHECKING:
    from starlette.types import Receive, Scope

GONE = 499  # what logs and metrics show for a client that left
LARGE = 64 << 10  # bytes of a body that is decoded in a thread
T = TypeVar("T")


async def read_body(scope: Scope, receive: Receive, limits: Limits, hold: Callable[[int], None]) -> bytes:
    """All of it; ``hold`` is told of each piece. Refusal: 413 if it is too large, 408 if it does not come, 499 if the
    client goes."""
    stated = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    if int(stated) > limits.body:
        raise _too_large(limits)
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_wait):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refusal(GONE, "the client left")
                piece = message.get("body", b"")
                if len(body) + len(piece) > limits.body:
                    raise _too_large(limits)
                hold(len(piece))
                body += piece
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise Refusal(408, f"the body did not come within {limits.body_wait:.0f} s", code="timeout") from None


async def decoded(body: bytes, read: Callable[[bytes], T]) -> T:
    """What ``read`` makes of a body; of a large one beside the event loop, where it would stop the others."""
    return await asyncio.to_thread(read, body) if len(body) > LARGE else read(body)


def _too_large(limits: Limits) -> Refusal:
    return Refusal(413, f"a body of more than {limits.body} bytes", code="request_too_large")
