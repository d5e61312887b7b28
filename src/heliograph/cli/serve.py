"""``heliograph serve``: a core over HTTP, from processes without torch.

The worker loads while this module is imported (``cli.main`` has started it), and what the server itself needs is
imported once the port is open.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from queue import Full, Queue
from threading import Thread
from typing import TYPE_CHECKING

import click

from heliograph.cli.number import Number
from heliograph.cli.output import device_option, show_error, threads_option
from heliograph.cli.size import Size
from heliograph.errors import HeliographError
from heliograph.serve.front.start import Answered, Options, serve
from heliograph.serve.limits import LIMITS

if TYPE_CHECKING:
    from heliograph.serve.fork import Copies

LINES = 10_000  # of the log that wait to be written
LAST_SECONDS = 1  # for them when a server ends


@click.command("serve")
@click.argument("core", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes any free port.")
@device_option
@threads_option
@click.option(
    "--units", type=click.IntRange(0), default=0, help="KV blocks; default what the core can use or what fits."
)
@click.option("--memory", type=Size(), default="0", help="Memory to fill with KV blocks, for example 2GiB.")
@click.option("--model", default="", metavar="NAME", help="Name of the model in the API; default the core's name.")
@click.option("--strict", is_flag=True, help="Refuse requests with unknown fields instead of naming them in a header.")
@click.option("--wait-all", is_flag=True, help="Build and test every bucket before the first answer.")
@click.option(
    "--shutdown-timeout", type=Number(0), default=LIMITS.shutdown, show_default=True, metavar="SECONDS",
    help="Running requests may take so long to end after SIGTERM or Ctrl-C.",
)  # fmt: skip
@click.option("--log-requests", is_flag=True, help="A line for each request as its answer ends; nothing of its text.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line an event, also on a terminal.")
@click.pass_obj
def command(
    copies: Copies | None, core: Path, host: str, port: int, device: int, threads: int, units: int, memory: int,
    model: str, strict: bool, wait_all: bool, shutdown_timeout: float, log_requests: bool, as_json: bool,
) -> int:  # fmt: skip
    """Serve CORE over HTTP until SIGTERM or Ctrl-C.

    The port is open from the start: requests are held until the core is loaded. Prints the phases of the start: a
    table on a terminal, one JSON line each otherwise.
    """
    options = Options(
        core=core, host=host, port=port, device=device, threads=threads, units=units, memory=memory, wait_all=wait_all,
        strict=strict, alias=model, shutdown=shutdown_timeout, log_requests=log_requests,
    )  # fmt: skip
    worker, renderer = copies or (None, None)
    with Out() as out:
        plain = as_json or sys.stdout is None or not sys.stdout.isatty()
        return serve(options, Lines(out) if plain else Table(out), worker, renderer)


# What a person is told that answers depend on, by the core's numerics.
PROMISES = {
    "row-invariant": "the same request and seed give the same tokens alone and in any company",
    "fast": "the same request and seed make the same draws; company may decide between nearly equal tokens",
}


class Out:
    """Standard output, written by a thread: neither does a server wait for who reads its log, nor end with him. Lines
    beyond a bound are lost, and their number is told."""

    def __init__(self) -> None:
        self._lines: Queue[str | None] = Queue(LINES)
        self._lost = 0
        # No buffer of Python's, whose lock would be held when the process ends. A service may have no output.
        self._to = sys.stdout.fileno() if sys.stdout else -1
        self._thread = Thread(target=self._write, name="log", daemon=True)

    def __enter__(self) -> Out:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """What was said is written, if somebody reads it."""
        with suppress(Full):
            self._lines.put(None, timeout=LAST_SECONDS)
            self._thread.join(LAST_SECONDS)

    def say(self, text: str) -> None:
        try:
            if self._lost:
                self._lines.put_nowait(f"({self._lost} lines were lost: nobody read them)")
                self._lost = 0
            self._lines.put_nowait(text)
        except Full:
            self._lost += 1

    def _write(self) -> None:
        while (text := self._lines.get()) is not None:
            data = f"{text}\n".encode()
            with suppress(OSError):  # nobody reads it any more, or its disk is full
                while data:
                    data = data[os.write(self._to, data) :]


class Lines:
    """Events for a program: one JSON object a line."""

    def __init__(self, out: Out) -> None:
        self._out = out

    def listening(self, url: str) -> None:
        self._say("listening", url=url)

    def phase(self, name: str, nanoseconds: int) -> None:
        self._say("phase", name=name, nanoseconds=nanoseconds)

    def ready(self, nanoseconds: int, numerics: str) -> None:
        self._say("ready", nanoseconds=nanoseconds, numerics=numerics)

    def restarting(self, error: HeliographError) -> None:
        self._say("restarting", error=type(error).__name__, found=error.found)

    def answered(self, request: Answered) -> None:
        self._say("request", **{name: getattr(request, name) for name in request.__struct_fields__})

    def draining(self) -> None:
        self._say("draining")

    def _say(self, event: str, **fields: object) -> None:
        self._out.say(json.dumps({"event": event, **fields}))


class Table:
    """Events for a person: a row of the table as each phase ends. (Not drawn by rich, which takes 60 ms to import.)"""

    def __init__(self, out: Out) -> None:
        self._say = out.say
        self._url = ""

    def listening(self, url: str) -> None:
        self._url = url
        self._say(f"{'phase':<28} {'ms':>8}")

    def phase(self, name: str, nanoseconds: int) -> None:
        self._say(f"{name:<28} {nanoseconds / 1e6:8.1f}")

    def ready(self, nanoseconds: int, numerics: str) -> None:
        self._say(f"{'in all':<28} {nanoseconds / 1e6:8.1f}")
        self._say(f"{numerics}: {PROMISES[numerics]}")
        self._say(f"listening on {self._url}; Ctrl-C ends")

    def restarting(self, error: HeliographError) -> None:
        show_error(error, as_json=False)
        self._say("the worker is started again")

    def answered(self, request: Answered) -> None:
        made = f", {request.prompt_tokens} + {request.generated_tokens} tokens" if request.prompt_tokens else ""
        first = f", the first after {request.first_token / 1e6:.1f}" if request.first_token else ""
        asked = f"{request.method} {json.dumps(request.path)[1:-1]}"
        self._say(f"{asked} {request.status}  {request.nanoseconds / 1e6:.1f} ms{made}{first}  {request.id}")

    def draining(self) -> None:
        self._say("ending: running requests may finish; again to end at once")
