"""The process: a socket to the front, one core, the loop. ``python -m heliograph.serve.worker FD``.

It ends with 0 after Stop and when the front goes, at once and whatever it was doing; with 1 after an error, which it
tells as its last words. The front alone decides when to end: SIGINT, which a terminal sends to the whole group, is
ignored. SIGTERM ends it by the kernel's own hand: it holds nothing that outlives it.
"""

from __future__ import annotations

import gc
import os
import select
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from heliograph.core.policy import Policy
from heliograph.core.verify import verify
from heliograph.errors import HeliographError, ProtocolError
from heliograph.runtime.load import load
from heliograph.runtime.steps import Steps
from heliograph.serve.frames import (
    PROTOCOL,
    Cancel,
    Ended,
    Failed,
    Hello,
    Loaded,
    Phase,
    Proceed,
    Ready,
    Start,
    Stop,
    Submit,
    check_protocol,
)
from heliograph.serve.limits import LIMITS, Limits
from heliograph.serve.worker.engine import Engine
from heliograph.serve.worker.link import FrontGone, Link

OK, FAILED = 0, 1
NAME = "helio-worker"  # as top and ps -o comm show it: the first one has the command line of its front


def main(descriptor: int, began: int) -> int:
    """``began``: ``time.perf_counter_ns()`` before the imports. The exit code."""
    with suppress(OSError):
        Path("/proc/self/comm").write_text(NAME)
    leave_with(descriptor)
    link = Link(descriptor)
    with ExitStack() as held:
        try:
            link.send(Phase("imports", time.perf_counter_ns() - began))
            serve(link, start(link, held))
        except FrontGone:
            return OK
        except HeliographError as error:
            return say_last(link, error)
    return OK


def leave_with(front: int) -> None:
    """Ends this process when the front's end of the socket is closed, also in the middle of a load or a launch."""
    poll = select.poll()
    poll.register(front, select.POLLRDHUP)

    def watch() -> None:
        poll.poll()
        os._exit(OK)

    threading.Thread(target=watch, name="front", daemon=True).start()


def start(link: Link, held: ExitStack) -> Engine:
    """From Start to Loaded. What is taken is given back by ``held``."""
    order = first(link)
    check_protocol(order.protocol)
    begin = time.perf_counter_ns()
    with verify(Path(order.core), Policy.local()) as verified:
        link.send(Hello(PROTOCOL, verified.digest, verified.name))
        link.send(Phase("verify", time.perf_counter_ns() - begin))
        program = load(
            verified,
            workers=order.threads,
            index=order.device,
            units=order.units or None,
            memory=order.memory or None,
            ready=(),
        )
    held.enter_context(program)
    for name, nanoseconds in program.phases.items():
        if name not in ("self-tests", "total"):  # the engine's, and not over yet
            link.send(Phase(name, nanoseconds))
    steps = held.enter_context(Steps(program))
    gc.freeze()  # what the start made lives as long as the process: no collection need walk it
    gc.enable()
    engine = Engine(steps, time.perf_counter_ns)
    while order.wait_all and engine.unbuilt:
        engine.build()
    link.send(Loaded(steps.text.concurrency, steps.units - 1, steps.text.block_tokens, steps.biases))
    return engine


def first(link: Link) -> Start:
    """The first message, which must be Start."""
    end = time.monotonic() + LIMITS.start
    while (left := end - time.monotonic()) > 0:
        for message in link.receive(left):
            if isinstance(message, Start):
                return message
            raise _out_of_turn(type(message).__name__)
    raise _out_of_turn(f"nothing for {LIMITS.start:g} s")


def serve(link: Link, engine: Engine, limits: Limits = LIMITS) -> None:
    """Builds what a start needs, then says Ready; rounds while there are rows; other builds when it has been quiet;
    until Stop. Looks at the socket before each.

    Beyond what lets a row begin, nothing is built before the front has submitted what it held back. After Ready a build
    is not begun at once: the next request often comes right after an answer, and would wait for a bucket's self-test.
    """
    busy_until = time.monotonic()
    ready = heard = False  # whether the front has submitted what it held back

    def goes_on() -> bool:
        return not ready and (heard or not engine.able)

    while True:
        if not ready and not engine.starting:
            ready = True
            link.send(Phase("self-tests", engine.testing))
            link.send(Ready())
        if link.full or not (engine.busy or engine.unbuilt):
            wait = None
        elif engine.busy or goes_on():
            wait = 0.0
        else:
            wait = max(0.0, busy_until + limits.quiet - time.monotonic())
        for message in link.receive(wait):
            ended: list[Ended] = []
            match message:
                case Submit():
                    heard = True
                    ended = engine.submit(message)
                case Cancel():
                    ended = engine.cancel(message)
                case Proceed():
                    heard = True
                case Stop():
                    return
                case Start():
                    raise _out_of_turn("a second Start")
            for each in ended:
                link.send(each)
        if link.full:
            continue
        if engine.busy:
            for launched in engine.round():
                link.send(launched)
            busy_until = time.monotonic()
        if goes_on() or (not engine.busy and time.monotonic() >= busy_until + limits.quiet):
            engine.build()


def say_last(link: Link, error: HeliographError) -> int:
    """The error in a Failed, if the front still listens. The exit code."""
    parts = (error.doing, error.found, error.required, error.hint)
    texts = (part.encode(errors="replace").decode() for part in parts)  # names of files need not be Unicode
    with suppress(FrontGone):
        link.send(Failed(type(error).__name__, *texts))
        link.drain(LIMITS.stop)
    return FAILED


def _out_of_turn(found: str) -> ProtocolError:
    return ProtocolError(
        "reading what the front says", found=found, required="one Start, then Submit, Cancel or Stop",
        hint="workers are started by heliograph serve",
    )  # fmt: skip
