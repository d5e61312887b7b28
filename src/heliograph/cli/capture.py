"""``heliograph capture``: model files -> signed core. The only command that imports torch."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click
from torch import nn

from heliograph.capture import CaptureSpec, capture
from heliograph.capture.again import Again
from heliograph.capture.environment import serving_environment
from heliograph.capture.export import check_arguments
from heliograph.capture.export_graph import Retain
from heliograph.capture.provenance import factory_sources
from heliograph.cli.inspect import describe, show
from heliograph.cli.machine import fits
from heliograph.cli.output import console, device_option, json_option, print_json, progress
from heliograph.cli.size import Size
from heliograph.core.format import DEFAULT_CAP, SLOTS
from heliograph.core.policy import Policy
from heliograph.core.sign import development_key
from heliograph.core.storage import storing
from heliograph.core.verify import verify
from heliograph.core.write import DraftWriter
from heliograph.errors import UsageError
from heliograph.models.load import load_model
from heliograph.runtime.handover import handover


@click.command("capture")
@click.argument("model")
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
@click.option(
    "--target",
    type=click.Choice(["host", "cuda"]),
    default="host",
    show_default=True,
    help="Device that the core is for; it is captured on it.",
)
@device_option
@click.option("--range-census", is_flag=True, help="CUDA: capture once, and tell pointers from numbers by range.")
@click.option("--then", type=click.Choice(["serve"]), help="Become the server of the core, in the same process.")
@click.option("--host", help="With --then serve: as of serve.")
@click.option("--port", type=click.IntRange(0, 65535), help="With --then serve: as of serve.")
@json_option
def command(
    model: str, cores: Path, name: str | None, cap: int, retain: Retain, slot: int, target: str, device: int,
    range_census: bool, then: str | None, host: str | None, port: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Capture MODEL into a signed core and print its folder.

    MODEL is a GGUF file or a Hugging Face folder, or path/to/file.py:function, a function that returns a module and its
    CaptureSpec.
    """
    signal.signal(signal.SIGTERM, _end)
    serving = {"--host": host, "--port": port}
    given = [word for name, value in serving.items() if value is not None for word in (name, str(value))]
    if given and then is None:
        raise UsageError(
            "reading the options", found=" ".join(given), required="--then serve beside it",
            hint="a capture alone does not listen: leave it out, or add --then serve",
        )  # fmt: skip
    if range_census and target != "cuda":
        raise UsageError(
            "reading the options", found="--range-census", required="--target cuda beside it",
            hint="a host capture knows its pointers and has no census: leave it out",
        )  # fmt: skip
    if device and target != "cuda":
        raise UsageError(
            "reading the options", found=f"--device {device}", required="--target cuda beside it",
            hint="the number is of a CUDA device: leave it out, or add --target cuda",
        )  # fmt: skip
    check_arguments(cores, name=name, cap=cap, device=target)
    key = development_key()
    if then == "serve":
        _check_address(given)
    DraftWriter(cores).abandon()  # that one can be made there
    with progress(as_json) as tell:
        made = _made(model, target)
        if then == "serve" and made.spec.text is None:
            raise UsageError(
                "reading the options", found="--then serve with a model that says nothing about text",
                required="a language model: a GGUF file, a Hugging Face folder, or a CaptureSpec with text",
                hint="leave --then serve out: heliograph.runtime replays any core",
            )  # fmt: skip
        core = capture(
            made.model,
            replace(made.spec, slot=slot),
            cores=cores,
            name=name,
            cap=cap,
            retain=retain,
            consume=True,
            sources=made.sources,
            key=key,
            device=target,
            index=device,
            again=None if range_census else made.again,
            progress=tell,
        )
    with verify(core, Policy.local()) as verified:
        description = describe(verified) | {"fits": fits(verified, device)}
    with storing(f"telling of {core}, which is written"):
        if as_json:
            print_json({"core": str(core)} | description)
        else:
            show(description, out := console())
            out.print(f"\ncore written to {core}", markup=False, soft_wrap=True)
    if then == "serve":
        handover(server_command(core, device, given, as_json), environment=serving_environment())


def server_command(core: Path, device: int, given: list[str], as_json: bool) -> list[str]:
    """What a capture becomes. ``given``: options of serve as they were given."""
    server = [sys.executable, "-P", "-m", "heliograph", "serve", str(core), "--device", str(device), *given]
    return server + ["--json"] * as_json


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """Ends the command as an error does, so that nothing is left, and once: ``timeout`` sends its signal twice."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def _check_address(given: list[str]) -> None:
    """UsageError if a server with these options could not listen now."""
    from heliograph.cli.serve import command as serve  # noqa: PLC0415 - of this option only
    from heliograph.serve.front.start import listen  # noqa: PLC0415

    options = serve.make_context("serve", ["CORE", *given]).params
    listen(options["host"], options["port"]).close()


@dataclass(frozen=True, slots=True)
class _Made:
    model: nn.Module
    spec: CaptureSpec
    again: Again | None  # for a second capture, which only CUDA has
    sources: dict[str, str]  # the model's files, path to digest, where it has any


def _made(model: str, target: str) -> _Made:
    """The model that the argument names, and how it is made in another process."""
    if ".py:" in model:
        factory = Again(model)
        return _Made(*factory.make(), factory, factory_sources(model))
    if target == "cuda":
        from heliograph.models.load_cuda import load_for_cuda  # noqa: PLC0415 - needs triton

        loaded, again = load_for_cuda(model), Again("heliograph.models.load_cuda:make", (model,))
    else:
        loaded, again = load_model(model), None
    folder = Path(model) if Path(model).is_dir() else Path(model).parent
    sources = {str(folder / source.name): source.digest for source in loaded.sources}
    return _Made(loaded.model, loaded.spec, again, sources)
