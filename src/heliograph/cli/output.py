"""What every command prints through: a person's view on a terminal, or one JSON object."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from heliograph.errors import HeliographError

if TYPE_CHECKING:
    from rich.console import Console

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")

device_option = click.option(
    "--device", type=click.IntRange(0), default=0, show_default=True, help="Number of the CUDA device, for a CUDA core."
)

threads_option = click.option(
    "--threads", type=click.IntRange(0), default=0, help="Threads that run kernels; default one a processor."
)

# Called with what is being done, how much of it is done, and how much there is (any unit; total 0 = unknown).
Tell = Callable[[str, int, int], None]


def print_json(value: Mapping[str, Any]) -> None:
    click.echo(json.dumps(value), err=sys.stdout is None)


def show_error(error: HeliographError, as_json: bool) -> None:
    """An error on standard error: four lines for a person, one JSON object for a script."""
    if as_json:
        fields = {"error": type(error).__name__, "doing": error.doing, "found": error.found}
        click.echo(json.dumps(fields | {"required": error.required, "hint": error.hint}), err=True)
        return
    label = click.style(type(error).__name__, fg="red", bold=True)
    click.echo(f"{label}: {error.doing}", err=True)
    click.echo(f"  found:    {error.found}\n  required: {error.required}", err=True)
    click.echo(f"{click.style('hint', fg='cyan')}: {error.hint}", err=True)


def console() -> Console:
    """Of standard output, or of standard error if there is no output."""
    from rich.console import Console  # noqa: PLC0415 - 60 ms that a server and a script do not wait for

    stream = sys.stdout or sys.stderr
    return Console(file=stream, highlight=False, soft_wrap=not (stream and stream.isatty()))


def bytes_text(count: int) -> str:
    """A byte count as a person reads it: 93.8 MiB."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


@contextmanager
def progress(quiet: bool) -> Iterator[Tell]:
    """A progress bar on standard error for work that takes a while; nothing when quiet or not a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda doing, done, total: None
        return
    from rich.console import Console  # noqa: PLC0415 - see `console`
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    percent = TextColumn("{task.percentage:>3.0f}%")
    columns = (TextColumn("{task.description}"), BarColumn(), percent, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def tell(doing: str, done: int, total: int) -> None:
            bar.update(task, description=doing, completed=done, total=total or None)

        yield tell
