"""The event loop of a front: uvicorn on the bound socket, signals, and the order in which things end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from ipaddress import ip_address
from random import SystemRandom
from typing import TYPE_CHECKING, Any

import uvicorn
import uvloop

from heliograph.serve.front.app import make_app
from heliograph.serve.front.connection import Connection
from heliograph.serve.front.face import Face
from heliograph.serve.front.service import Service, World
from heliograph.serve.front.spawn import Process, spawn
from heliograph.serve.front.start import BACKLOG, ENDING, Options, Report, tell_start
from heliograph.serve.limits import LIMITS, Limits

if TYPE_CHECKING:
    from starlette.types import ASGIApp


class HttpServer(uvicorn.Server):
    """uvicorn without its signals, which are ours."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run(
    options: Options, process: Process, listener: socket.socket, face: Future[Face], report: Report, began: float,
    came: Sequence[int],
) -> int:  # fmt: skip
    """Serves until the end. ``process`` is the first worker, which has been told its start; ``began`` is when
    that was, by ``time.monotonic``; ``came``: signals that came already."""
    workers = iter([process])

    def launch() -> Process:
        worker = next(workers, None)
        if worker is None:
            worker = spawn()
            tell_start(worker, options)
        return worker

    world = World(
        launch, time.monotonic, time.time, partial(SystemRandom().getrandbits, 63), lambda: os.urandom(16).hex()
    )

    async def until_a_signal() -> None:
        try:
            with signals(came) as stop:
                await main(options, world, listener, face, report, LIMITS, stop, began)
        finally:
            face.add_done_callback(_close)  # threads that wait for its renderer are joined next

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(until_a_signal())
    return 0


async def main(
    options: Options, world: World, listener: socket.socket, face: Future[Face], report: Report, limits: Limits,
    stop: asyncio.Event, began: float,
) -> None:  # fmt: skip
    """Serves until ``stop`` is set, then ends in good order; set once more meanwhile, it ends at once.

    Raises the error that ended the server otherwise.
    """
    service = Service(
        asyncio.wrap_future(face), world, report, limits, began, alias=options.alias, strict=options.strict,
        log_requests=options.log_requests,
    )  # fmt: skip
    local = ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback
    http = HttpServer(http_config(make_app(service, local=local), limits))
    supervising = asyncio.create_task(service.supervisor.run())
    serving = asyncio.create_task(http.serve([listener]))
    try:
        await first(stop.wait(), supervising, serving)
        if stop.is_set():
            stop.clear()
            await first(stop.wait(), service.drain(options.shutdown), supervising)
            await service.supervisor.stop()
        await (serving if serving.done() else supervising)
    finally:
        service.draining = True
        supervising.cancel()
        http.should_exit = True
        await serving


def _close(face: Future[Face]) -> None:
    if not face.cancelled() and face.exception() is None:
        face.result().text.close()


def http_config(app: ASGIApp, limits: Limits) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=partial(Connection, limits=limits),  # type: ignore[arg-type]  # called, never subclassed
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=round(limits.keep_alive),
        timeout_graceful_shutdown=round(limits.stop),
        backlog=BACKLOG,
    )


@contextlib.contextmanager
def signals(came: Sequence[int]) -> Iterator[asyncio.Event]:
    """An event that SIGTERM and SIGINT set, or have set if one ``came`` already."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in ENDING:
        loop.add_signal_handler(number, stop.set)
    if came:
        stop.set()
    try:
        yield stop
    finally:
        for number in ENDING:
            loop.remove_signal_handler(number)


async def first(*steps: Coroutine[Any, Any, Any] | asyncio.Task[Any]) -> None:
    """Until one of them has ended. Coroutines that have not are cancelled, tasks go on."""
    tasks = [step if isinstance(step, asyncio.Task) else asyncio.create_task(step) for step in steps]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, step in zip(tasks, steps, strict=True):
            if task is not step:
                task.cancel()
