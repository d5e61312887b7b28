"""The application: the endpoints that a start must have at once, and the way to the others.

``others`` are a Starlette application, which is imported when one of them is asked for: its 50 ms of processor time
would delay the first token.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING

import msgspec

from heliograph.serve.front.edge import Edge
from heliograph.serve.front.generate import Generate
from heliograph.serve.front.openai_request import read_chat, read_completion
from heliograph.serve.front.refusal import Refusal
from heliograph.serve.front.reply import Reply
from heliograph.serve.front.service import Service

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

OTHERS = "heliograph.serve.front.others"


def make_app(service: Service, *, local: bool) -> ASGIApp:
    """The ASGI application. ``local``: see ``edge``."""
    return Edge(Paths(service), service, local=local)


class Paths:
    """ASGI: by path and method."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._first: dict[tuple[str, str], ASGIApp] = {
            ("POST", "/v1/chat/completions"): Generate(service, read_chat, chat=True),
            ("POST", "/v1/completions"): Generate(service, read_completion, chat=False),
            ("GET", "/health"): self._health,
        }
        self._methods = {path: method for method, path in self._first}
        self._others: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        path = scope["path"]
        found = self._first.get((method, path))
        if found is None and path in self._methods:
            refusal = Refusal(405, f"{scope['method']} {path}: Method Not Allowed")
            reply = Reply(scope, send, self._service.limits.stall)
            await reply.refuse(refusal, {"allow": self._methods[path]})
            return
        await (found or await self._load())(scope, receive, send)

    async def _health(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = self._service.status
        ready = status == "ready"
        reply = Reply(scope, send, self._service.limits.stall)
        await reply.whole(
            200 if ready else 503, msgspec.json.encode({"status": status}), {} if ready else {"retry-after": "1"}
        )

    async def _load(self) -> ASGIApp:
        if self._others is None:
            module = await asyncio.to_thread(import_module, OTHERS)
            self._others = module.make_others(self._service)
        return self._others
