"""What every request passes, whatever its path: an id, bounds on its head, counting, the end of the server."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING

from heliograph.serve.front.body import GONE
from heliograph.serve.front.refusal import Refusal, fault
from heliograph.serve.front.reply import Reply
from heliograph.serve.front.service import Service

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
ENDPOINTS = frozenset({
    "/v1/chat/completions", "/v1/completions", "/v1/models", "/tokenize", "/detokenize", "/health", "/metrics",
    "/version",
})  # fmt: skip
PROBES = frozenset({"/health", "/metrics"})  # asked all the time: not in the log
OTHER = "other"  # the endpoint of unknown paths in metrics: as many as clients like may exist


class Edge:
    """ASGI middleware. ``local``: the server listens on this machine only, so only it may be named as the host; a
    page that a browser loaded from elsewhere cannot reach it by a name of its own."""

    def __init__(self, app: ASGIApp, service: Service, *, local: bool) -> None:
        self._app, self._service, self._local = app, service, local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = given.decode() if ID.fullmatch(given) else self._service.world.name()
        scope.setdefault("state", {})["request_id"] = request_id
        status, began = GONE, self._service.world.clock()

        async def put(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
                if self._service.draining:
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        try:
            refusal = self._refusal(scope, headers)
            if refusal is not None:
                await Reply(scope, put, self._service.limits.stall).refuse(refusal)
            else:
                await self._app(scope, receive, put)
        except Exception:
            if status == GONE:
                await Reply(scope, put, self._service.limits.stall).refuse(fault())
            raise  # uvicorn logs it, and closes the connection
        finally:
            path = scope["path"]
            self._service.metrics.requests[path if path in ENDPOINTS else OTHER, status] += 1
            if path not in PROBES:
                made = scope["state"].get("generation")
                self._service.answered(request_id, scope["method"], path, status, began, made)

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes]) -> Refusal | None:
        size = len(scope["raw_path"]) + len(scope["query_string"])
        size += sum(len(name) + len(value) for name, value in scope["headers"])
        if size > self._service.limits.header:
            return Refusal(431, f"a request line and headers of {size} bytes", code="headers_too_large")
        if self._local and not is_local(headers.get(b"host", b"localhost").decode("latin-1")):
            return Refusal(421, "the Host header names another machine", code="wrong_host")
        return None


def is_local(host: str) -> bool:
    """Whether a Host header can only mean this machine: localhost, or an address instead of a name."""
    name = host.rpartition(":")[0] if re.search(r":[0-9]*\Z", host) and not host.endswith("]") else host
    if name.lower().rstrip(".") == "localhost" or name.lower().endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
