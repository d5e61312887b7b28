"""``heliograph capture``: model files -> signed core. The only command that imports torch."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from heliograph.capture import capture
from heliograph.capture.environment import serving_environment
from heliograph.capture.export_graph import Retain
from heliograph.cli.inspect import describe, show
from heliograph.cli.machine import fits
from heliograph.cli.output import console, json_option, print_json, progress
from heliograph.cli.size import Size
from heliograph.core.format import DEFAULT_CAP, SLOTS
from heliograph.core.policy import Policy
from heliograph.core.verify import verify
from heliograph.errors import UsageError
from heliograph.models.load import load_model
from heliograph.runtime.handover import handover


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
@click.option("--then", type=click.Choice(["serve"]), help="Become the server of the core, in the same process.")
@click.option("--host", help="With --then serve: as of serve.")
@click.option("--port", type=click.IntRange(0, 65535), help="With --then serve: as of serve.")
@json_option
def command(
    model: Path, cores: Path, name: str | None, cap: int, retain: Retain, slot: int, then: str | None, host: str | None,
    port: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Capture MODEL (a GGUF file or a Hugging Face folder) into a signed core and print its folder."""
    serving = {"--host": host, "--port": port}
    given = [word for name, value in serving.items() if value is not None for word in (name, str(value))]
    if given and then is None:
        raise UsageError(
            "reading the options", found=" ".join(given), required="--then serve beside it",
            hint="a capture alone does not listen: leave it out, or add --then serve",
        )  # fmt: skip
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
    if then == "serve":
        server = [sys.executable, "-P", "-m", "heliograph", "serve", str(core), *given]
        handover(server + ["--json"] * as_json, environment=serving_environment())
