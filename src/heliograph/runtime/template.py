"""A chat template, rendered in a bounded process of its own (``runtime.render``)."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Protocol

from heliograph.errors import TemplateError, UsageError

PROCESSOR_SECONDS = 0.5  # for one rendering
WALL_SECONDS = 10.0  # for one frame there or back; only a machine that does not run the process at all gets here
MEMORY_BYTES = 512 << 20  # address space of the process, the interpreter included
FUEL = 4_000_000  # steps of the engine, beside 16 for each byte of input
MAX_REPLY = 128 << 20  # bytes


class Process(Protocol):
    """One that runs ``runtime.render`` on its standard input and output: ``subprocess.Popen``, or alike."""

    @property
    def pid(self) -> int: ...
    @property
    def stdin(self) -> IO[bytes] | None: ...
    @property
    def stdout(self) -> IO[bytes] | None: ...
    def poll(self) -> int | None: ...
    def wait(self) -> int: ...
    def kill(self) -> None: ...


class ChatTemplate:
    """A template and the process that renders it. Any thread may render; renderings take turns.

    The process starts here, so that it starts while the caller does other things, and again after a template made
    it die. It ends with :meth:`close`, with the last reference, or when this process does.
    """

    def __init__(self, source: str, process: Process | None = None) -> None:
        """``process``: one that was started already and has been told nothing yet; it is ours from now on."""
        self._source = source
        self._lock = threading.Lock()
        self._compiled = self._closed = False
        self._begin(process or _start())

    def render(self, variables: Mapping[str, object]) -> str:
        """The conversation as text. UsageError: the template refuses it; TemplateError: the template is at fault."""
        with self._lock:
            if self._closed:
                raise _error("a renderer that was closed", "one that is open")
            if self._process.poll() is not None:
                self._end()
                self._begin(_start())
            if not self._compiled:
                try:
                    self._reply()
                except TemplateError:
                    self._end()  # it has said that it cannot; another one will say so again
                    raise
                self._compiled = True
            self._send(variables)
            return self._reply()

    def close(self) -> None:
        """A rendering under way ends with TemplateError, as do those that wait for their turn."""
        self._closed = True
        self._process.kill()
        with self._lock:
            self._end()

    def _begin(self, process: Process) -> None:
        self._end = weakref.finalize(self, stop, process)
        self._process = process
        self._compiled = False
        self._send({"template": self._source, "seconds": PROCESSOR_SECONDS, "memory": MEMORY_BYTES, "fuel": FUEL})

    def _send(self, message: Mapping[str, object]) -> None:
        deadline = time.monotonic() + WALL_SECONDS
        pipe = self._process.stdin
        data = json.dumps(message).encode()
        rest = memoryview(len(data).to_bytes(4, "little") + data)
        if pipe:
            os.set_blocking(pipe.fileno(), False)
        while pipe and rest:
            self._await(pipe, select.POLLOUT, deadline)
            try:
                rest = rest[os.write(pipe.fileno(), rest) :]
            except BrokenPipeError:
                return  # it died: reading the reply says how

    def _reply(self) -> str:
        deadline = time.monotonic() + WALL_SECONDS
        size = int.from_bytes(self._read(4, deadline), "little")
        if size > MAX_REPLY:
            raise self._failed(f"a reply of {size} bytes", f"{MAX_REPLY} bytes at most")
        message: dict[str, str] = json.loads(self._read(size, deadline))
        if "refused" in message:
            raise UsageError(
                "rendering the chat template", found=message["refused"], required="a conversation that it takes",
                hint="change the messages as the model's template asks",
            )  # fmt: skip
        if "failed" in message:
            raise _error(message["failed"], "a template that renders")
        return message["text"]

    def _read(self, size: int, deadline: float) -> bytearray:
        pipe = self._process.stdout
        data = bytearray()
        while pipe and len(data) < size:
            self._await(pipe, select.POLLIN, deadline)
            part = os.read(pipe.fileno(), size - len(data))
            if not part:
                raise self._died()
            data += part
        return data

    def _await(self, pipe: IO[bytes], event: int, deadline: float) -> None:
        poll = select.poll()  # unlike select, with any number of open files
        poll.register(pipe, event)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise self._failed(f"no answer in {WALL_SECONDS:.0f} s", "an answer")

    def _died(self) -> TemplateError:
        code = self._process.wait()
        causes = {
            -signal.SIGPROF: f"more than {PROCESSOR_SECONDS} s of processor time",
            -signal.SIGABRT: f"more than {MEMORY_BYTES >> 20} MiB of memory",
            -signal.SIGSEGV: "nesting too deep for the engine's stack",
        }
        return _error(causes.get(code, f"a renderer that ended with status {code}"), "a template within its bounds")

    def _failed(self, found: str, required: str) -> TemplateError:
        self._process.kill()
        self._process.wait()
        return _error(found, required)


def _error(found: str, required: str) -> TemplateError:
    return TemplateError(
        "rendering the chat template", found=found, required=required,
        hint="the template that came with the model is at fault: capture the model with another one",
    )  # fmt: skip


def _start() -> Process:
    import subprocess  # noqa: PLC0415  a server's first one was started otherwise

    return subprocess.Popen(  # noqa: S603  our own interpreter and file
        [sys.executable, "-I", str(Path(__file__).with_name("render.py"))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        process_group=0,  # Ctrl-C in a terminal is for the caller alone
    )  # fmt: skip


def stop(process: Process) -> None:
    """Ends the process and closes its pipes."""
    if process.poll() is None:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe:
            with contextlib.suppress(BrokenPipeError):  # what was still to be written has no reader
                pipe.close()
