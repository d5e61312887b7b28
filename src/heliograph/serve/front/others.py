"""The endpoints that no start needs, a line or two each, and the answer to paths that do not exist (Starlette)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from heliograph.serve.front.body import decoded, read_body
from heliograph.serve.front.exposition import CONTENT_TYPE, expose
from heliograph.serve.front.openai_answer import error_body, model_body, models_body
from heliograph.serve.front.openai_request import check_model, read_detokenize, read_tokenize
from heliograph.serve.front.refusal import Refusal, fault
from heliograph.serve.front.service import Service


def make_others(service: Service) -> Starlette:
    async def models(request: Request) -> Response:
        return json(models_body([await service.hold()]))

    async def model(request: Request) -> Response:
        found = await service.hold()
        check_model(request.path_params["model"], found)
        return json(model_body(found))

    async def metrics(request: Request) -> Response:
        return Response(expose(service.metrics, service.rounds), headers={"content-type": CONTENT_TYPE})

    async def tell_version(request: Request) -> Response:
        return json({"version": version("heliograph")})

    async def tokenize(request: Request) -> Response:
        with service.admit() as hold:
            body = read_body(request.scope, request.receive, service.limits, hold)
            name, plan = await decoded(await body, partial(read_tokenize, limits=service.limits))
            found = await service.hold()
            check_model(name or found.name, found)
            (tokens,) = await service.encode(plan)
            return json({"tokens": tokens.tolist(), "count": len(tokens), "max_model_len": found.context})

    async def detokenize(request: Request) -> Response:
        with service.admit() as hold:
            body = read_body(request.scope, request.receive, service.limits, hold)
            name, tokens = await decoded(await body, read_detokenize)
            found = await service.hold()
            check_model(name or found.name, found)
            return json({"prompt": await service.decode(tokens, found)})

    routes = [
        Route("/v1/models", models),
        Route("/v1/models/{model:path}", model),
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
        Route("/metrics", metrics),
        Route("/version", tell_version),
    ]
    handlers: dict[Any, Callable[[Request, Any], Awaitable[Response]]] = {
        Refusal: refused, HTTPException: unroutable, 500: broken,
    }  # fmt: skip
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False  # a redirected POST is a surprise
    return app


def json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, "application/json")


async def refused(request: Request, refusal: Refusal) -> Response:
    return json(error_body(refusal), refusal.status, refusal.headers)


async def unroutable(request: Request, error: HTTPException) -> Response:
    """404 and 405, in the dialect."""
    refusal = Refusal(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
    return json(error_body(refusal), refusal.status, {**refusal.headers, **(error.headers or {})})


async def broken(request: Request, error: Exception) -> Response:
    """A fault of ours. What it says is for the log, which gets it after this."""
    return json(error_body(fault()), 500)
