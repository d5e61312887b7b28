"""The process in which chat templates are rendered. ``runtime.template`` starts it by path, isolated (``-I``); the
first one of a server is a copy of it (``serve.fork``), made before there is anything in it but imports.

A template comes with the model's files and is a program. The engine's fuel bounds loops, but not the cost of one
step (``'{:>999999999}'.format(1)``, printing a list that holds itself twice, sixty times over), and deep nesting
overflows its native stack. So it runs here, where it can only end this process: bounded memory, processor time and
open files, and nothing of the package that could be called.

Frames both ways: length (4 bytes, little-endian), JSON. First frame: ``{"template", "seconds", "memory", "fuel"}``,
then one of template variables a rendering. Replies: ``{"text"}``, ``{"refused"}`` (the template called
``raise_exception``) or ``{"failed"}``.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial

import minijinja
import minijinja._internal  # the engine opens it with its first error, when no file can be opened any more

FUEL_PER_BYTE = 16  # of a rendering's input, on top of the fixed amount
MAX_TEXT = 16 << 20  # characters of a rendered conversation


class Refusal(Exception):
    """The template says that it cannot render this conversation."""


def read() -> bytes | None:
    """The next frame, or None at the end of input."""
    head = sys.stdin.buffer.read(4)
    return sys.stdin.buffer.read(int.from_bytes(head, "little")) if len(head) == 4 else None


def reply(message: Mapping[str, str]) -> None:
    data = json.dumps(message).encode()
    sys.stdout.buffer.write(len(data).to_bytes(4, "little") + data)
    sys.stdout.buffer.flush()


def refuse(message: object) -> None:
    raise Refusal(str(message))


def to_json(
    value: object, ensure_ascii: bool = False, indent: int | None = None,
    separators: tuple[str, str] | None = None, sort_keys: bool = False,
) -> str:  # fmt: skip
    """As transformers defines the filter: no escaping for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment() -> minijinja.Environment:
    """The engine with the settings and functions that chat templates are written for."""
    made = minijinja.Environment(
        trim_blocks=True, lstrip_blocks=True, debug=False, auto_escape_callback=lambda name: False,
    )  # fmt: skip
    made.add_filter("tojson", to_json)
    made.add_global("raise_exception", refuse)
    made.add_global("strftime_now", lambda form: time.strftime(str(form)))
    return made


def prepared(source: str) -> str:
    """The template as jinja2 and transformers read it: one kind of line ends, and a block that marks what an assistant
    says is but a scope."""
    source = source.replace("\r\n", "\n").replace("\r", "\n")
    return re.sub(r"(\{%[-+]?\s*)(end)?generation(?=\s*[-+]?%\})", r"\1\2with", source)


def limit(memory: int) -> None:
    """Bounds this process: address space, open files, file size, core dumps."""
    for kind, value in (
        (resource.RLIMIT_AS, memory), (resource.RLIMIT_NOFILE, 3), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)
    ):  # fmt: skip
        resource.setrlimit(kind, (value, value))


def attempt(step: Callable[[], str], seconds: float) -> dict[str, str]:
    """The step's reply. Beyond ``seconds`` of processor time the timer's signal ends the process."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        text = step()
        return {"text": text} if len(text) <= MAX_TEXT else {"failed": f"{len(text)} characters of text"}
    except Refusal as error:
        return {"refused": str(error)}
    except (minijinja.TemplateError, ValueError, TypeError, RecursionError, MemoryError) as error:
        return {"failed": str(error).partition("\n")[0] or type(error).__name__}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def main() -> None:
    frame = read()
    if frame is None:  # whoever started this had no template
        return
    first = json.loads(frame)
    limit(first["memory"])
    engine = environment()

    def compile_template() -> str:
        engine.add_template("chat", prepared(first["template"]))
        return ""

    def render(variables: bytes) -> str:
        engine.fuel = first["fuel"] + FUEL_PER_BYTE * len(variables)
        return engine.render_template("chat", **json.loads(variables))

    reply(attempt(compile_template, first["seconds"]))
    while (frame := read()) is not None:
        reply(attempt(partial(render, frame), first["seconds"]))


if __name__ == "__main__":
    main()
