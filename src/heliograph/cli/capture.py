"""``heliograph capture``: model files -> signed core. The only command that imports torch."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import click

from heliograph.capture import capture
from heliograph.capture.export_graph import Retain
from heliograph.cli.inspect import describe, show
from heliograph.cli.machine import fits
from heliograph.cli.output import console, json_option, print_json, progress
from heliograph.core.format import DEFAULT_CAP, SLOTS
from heliograph.core.policy import Policy
from heliograph.core.verify import verify
from heliograph.models.load import load_model

UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


class Size(click.ParamType[int]):
    """A byte count such as 64MiB."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"(\d+)\s*(KiB|MiB|GiB|)", str(value))
        if not found:
            self.fail(f"{value!r} is no size; write for example 64MiB", param, ctx)
        return int(found[1]) * UNITS[found[2]]


@click.command("capture")
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--cores",
    type=click.Path(path_type=Path),
    default=Path("cores"),
    show_default=True,
    help="Folder in which the core is written.",
)
@click.option("--name", help="Name of the core; default {arch}-tp{n}-{YYYYMMDDhhmm} in UTC.")
@click.option(
    "--cap", type=Size(), default=str(DEFAULT_CAP), help="Largest weight file, for example 64MiB; default 64GiB."
)
@click.option(
    "--retain",
    type=click.Choice(["template", "executable"]),
    default="template",
    show_default=True,
    help="Keep templates only, or executables as well.",
)
@click.option(
    "--slot",
    type=click.IntRange(0, SLOTS - 1),
    default=0,
    show_default=True,
    help="Slot of the address space; cores in different slots load side by side.",
)
@json_option
def command(model: Path, cores: Path, name: str | None, cap: int, retain: Retain, slot: int, as_json: bool) -> None:
    """Capture MODEL (a GGUF file or a Hugging Face folder) into a signed core and print its folder."""
    with progress(as_json) as tell:
        loaded = load_model(model)
        spec = replace(loaded.spec, slot=slot)
        sources = {source.name: source.digest for source in loaded.sources}
        core = capture(
            loaded.model,
            spec,
            cores=cores,
            name=name,
            cap=cap,
            retain=retain,
            consume=True,
            sources=sources,
            progress=tell,
        )
    with verify(core, Policy.local()) as verified:
        description = describe(verified) | {"fits": fits(verified)}
    if as_json:
        print_json({"core": str(core)} | description)
    else:
        show(description, console())
        click.echo(f"\ncore written to {core}")
