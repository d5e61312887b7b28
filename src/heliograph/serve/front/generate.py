"""One request that generates: read, start, stream or collect. Whoever asked may go at any moment: it ends then."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from heliograph.serve.front.body import decoded, read_body
from heliograph.serve.front.generation import Generation
from heliograph.serve.front.openai_answer import DONE, PING, REASONS, Answer, Choice, refusal_of
from heliograph.serve.front.openai_request import Plan, check_model
from heliograph.serve.front.refusal import Refusal
from heliograph.serve.front.reply import Reply
from heliograph.serve.front.service import Service
from heliograph.serve.limits import Limits

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

Read = Callable[[bytes, Limits, bool], tuple[str, Plan]]


class Generate:
    """An endpoint (ASGI). ``read`` is of its dialect."""

    def __init__(self, service: Service, read: Read, *, chat: bool) -> None:
        self._service, self._read, self._chat = service, read, chat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._service
        reply = Reply(scope, send, service.limits.stall)
        try:
            with service.admit() as hold:
                body = read_body(scope, receive, service.limits, hold)
                name, plan = await decoded(await body, lambda data: self._read(data, service.limits, service.strict))
                async with while_connected(receive):
                    begun = service.world.clock()
                    reply.name_ignored(plan.ignored)
                    give = self._stream if plan.stream else self._collect
                    answer, generation = await self._begin(scope, name, plan)
                    scope["state"]["generation"] = generation  # for the log
                    del plan  # what was asked is kept as tokens alone
                    try:
                        await give(answer, generation, reply)
                    finally:
                        service.cancel(generation)
                        service.metrics.request.observe(service.world.clock() - begun)
        except Refusal as refusal:
            await reply.refuse(refusal)
            if refusal.status == 500:
                raise  # uvicorn logs it, and closes the connection

    async def _begin(self, scope: Scope, name: str, plan: Plan) -> tuple[Answer, Generation]:
        """Generates once the model is loaded; the caller cancels it."""
        service = self._service
        encoding = asyncio.create_task(service.encode(plan))  # of an early request while the model loads
        encoding.add_done_callback(_look_at)
        try:
            model = await service.hold()
            check_model(name, model)
            prompts = await encoding
        finally:
            encoding.cancel()
        text = await service.text()
        answer = Answer(self._chat, scope["state"]["request_id"], int(service.world.wall()), model, plan.usage)
        return answer, service.generate(plan, prompts, model, text)

    async def _stream(self, answer: Answer, generation: Generation, reply: Reply) -> None:
        """Chunks as tokens come. Nothing is sent before the first token, so that an error has its status, or before the
        first ping: proxies end a request that is silent for long, while all that can still fail then is the server."""
        rows = generation.rows
        opened: set[int] = set()
        closed: set[int] = set()
        while len(closed) < len(rows):
            if not await generation.wait(self._service.limits.ping):
                await reply.stream(PING)
                continue
            chunks = []
            for index, row in enumerate(rows):
                if index in closed or (not row.tokens and row.end is None):
                    continue
                if row.end is not None and row.end not in REASONS:
                    raise refusal_of(row) from row.fault
                if index not in opened:
                    opened.add(index)
                    chunks.append(answer.opening(index))
                if text := row.text.take():
                    chunks.append(answer.piece(index, text))
                if row.end is not None:
                    closed.add(index)
                    chunks.append(answer.closing(index, row.end))
            if any(chunks):
                await reply.stream(b"".join(chunks))
        await reply.end_stream(answer.last(generation.prompt_tokens, rows) + DONE)

    async def _collect(self, answer: Answer, generation: Generation, reply: Reply) -> None:
        """The whole answer, once every row has ended."""
        while generation.under_way:
            await generation.wait(None)
        for row in generation.rows:
            if row.end not in REASONS:
                raise refusal_of(row) from row.fault
        choices = [Choice(row.text.take(), row) for row in generation.rows]
        await reply.whole(200, answer.whole(choices, generation.prompt_tokens))


def _look_at(task: asyncio.Task[list[array[int]]]) -> None:
    """What it raised is told to who waits for it, or to nobody."""
    if not task.cancelled():
        task.exception()


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[None]:
    """Cancels what runs inside as soon as the client has gone; the block then ends quietly.

    The body must have been read: what comes next is the news that the client left.
    """
    task = asyncio.current_task()
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        if task is not None:
            task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if not gone or task is None:
            raise
        task.uncancel()
    finally:
        watcher.cancel()
