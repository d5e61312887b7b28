"""A server in a thread of its own, real but for its worker, which is scripted."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import uvloop
from scripted_worker import Script, ScriptedWorker, Told

from heliograph.core.manifest import Text as TextFacts
from heliograph.errors import HeliographError
from heliograph.runtime.text import Text
from heliograph.serve.front.face import Face
from heliograph.serve.front.server import main
from heliograph.serve.front.service import World
from heliograph.serve.front.start import Answered, Options, listen, url_of
from heliograph.serve.limits import Limits
from tiny_tokenizer import CONTROLS, byte_level

EOS = 2
TEMPLATE = (
    "{% for m in messages %}{% if m.content == 'REFUSE' %}{{ raise_exception('not this') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PATIENCE = 30.0  # seconds that a test waits for anything


VOCABULARY = len(CONTROLS) + 256


@cache
def face() -> Face:
    facts = TextFacts(
        tokenizer="0" * 64, chat_template="0" * 64, bos=-1, eos=(EOS,), vocabulary=VOCABULARY, context=512,
        block_tokens=16, concurrency=8, bos_text="", eos_text="<|im_end|>",
    )  # fmt: skip
    return Face("tiny", "d" * 64, "row-invariant", facts, Text(facts, byte_level().to_str().encode(), TEMPLATE), 1)


def ids(text: str) -> list[int]:
    return face().text.encode(text)


@dataclass
class Heard:
    """A Report that keeps what it was told."""

    listened: list[str] = field(default_factory=list)
    phases: dict[str, int] = field(default_factory=dict)
    readies: int = 0
    ready_in: int = 0  # nanoseconds, of the last one
    restarts: list[HeliographError] = field(default_factory=list)
    drained: int = 0
    answers: list[Answered] = field(default_factory=list)

    def listening(self, url: str) -> None:
        self.listened.append(url)

    def phase(self, name: str, nanoseconds: int) -> None:
        self.phases[name] = nanoseconds

    def ready(self, nanoseconds: int, numerics: str) -> None:
        assert numerics == "row-invariant"
        self.ready_in = nanoseconds
        self.readies += 1

    def restarting(self, error: HeliographError) -> None:
        self.restarts.append(error)

    def answered(self, request: Answered) -> None:
        self.answers.append(request)

    def draining(self) -> None:
        self.drained += 1


@dataclass
class Served:
    """What a test has of a server."""

    url: str
    script: Script
    told: Told
    heard: Heard
    loop: asyncio.AbstractEventLoop
    stop: Callable[[], None]  # as a signal does
    ended: Future[None]

    def eventually(self, condition: Callable[[], bool]) -> None:
        """Waits until it holds, and fails if that takes too long."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, "it did not come to hold"
            time.sleep(0.002)

    def kill_worker(self) -> None:
        self.loop.call_soon_threadsafe(self.told.workers[-1].kill)


@contextmanager
def serving(
    script: Script, *, limits: Limits | None = None, strict: bool = False, alias: str = "", shutdown: float = 5.0,
    seeds: Sequence[int] = (), core: Face | Future[Face] | None = None, ready: bool = True,
    send_buffer: int = 0, log_requests: bool = False,
) -> Iterator[Served]:  # fmt: skip
    """A server until the block ends; it must have ended well then, unless the block took the error of ``ended``."""
    told, heard = Told(), Heard()
    listener = listen("127.0.0.1", 0)
    if send_buffer:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)  # accepted ones inherit it
    options = Options(core=Path("core"), strict=strict, alias=alias, shutdown=shutdown, log_requests=log_requests)
    face_future: Future[Face] = core if isinstance(core, Future) else Future()
    if not isinstance(core, Future):
        face_future.set_result(core or face())
    drawn = itertools.chain(seeds, itertools.count(1000))
    names = itertools.count()
    world = World(
        lambda: ScriptedWorker(script, told), time.monotonic, time.time, lambda: next(drawn),
        lambda: f"made-{next(names)}",
    )  # fmt: skip
    ended: Future[None] = Future()
    running: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def body() -> None:
        stop = asyncio.Event()
        running.set_result((asyncio.get_running_loop(), stop))
        await main(options, world, listener, face_future, heard, limits or Limits(), stop, time.monotonic())

    def thread() -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                ended.set_result(runner.run(body()))
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  the test sees it
            ended.set_exception(error)

    url = url_of(listener)
    started = threading.Thread(target=thread)
    started.start()
    loop, stop = running.result(PATIENCE)
    served = Served(url, script, told, heard, loop, lambda: loop.call_soon_threadsafe(stop.set), ended)
    try:
        if ready:
            served.eventually(lambda: heard.readies > 0 or ended.done())
        yield served
    finally:
        if not ended.done():
            served.stop()
            served.stop()
        started.join(PATIENCE)
        listener.close()
    if ended.exception(PATIENCE) is None:
        assert told.under_way == set()
