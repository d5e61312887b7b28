"""The command group, and how a command ends: its exit code, and how an error is shown."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from heliograph import errors
from heliograph.cli.output import show_error

COMMANDS = {
    "capture": "Capture a model into a signed core.",
    "inspect": "Show what is in a core.",
    "verify": "Check every byte of a core against its signature.",
    "replay": "Replay every bucket of a core against its self-test.",
    "generate": "Answer a prompt with a core, without torch.",
    "serve": "Serve a core over HTTP, without torch.",
    "chat": "Talk to a server.",
    "doctor": "Show what this machine can do, and whether a core fits it.",
}

# Exit codes; docs/commands.md lists them. 0 success, 1 the command's verdict is no, 2 usage.
EXIT_CODES: tuple[tuple[type[errors.HeliographError], int], ...] = (
    (errors.UsageError, 2),
    (errors.CaptureError, 3),
    (errors.ModelError, 4),
    (errors.CoreError, 5),
    (errors.DeviceError, 6),
    (errors.StorageError, 7),
    (errors.SchemaMismatchError, 8),
    (errors.ServeError, 9),
)


class Commands(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"heliograph.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="heliograph")
def group() -> None:
    """Capture a PyTorch model's device work once; serve it from a process without PyTorch."""


def exit_code(error: errors.HeliographError) -> int:
    return next(code for kind, code in EXIT_CODES if isinstance(error, kind))


def run(arguments: Sequence[str], passed: object = None) -> NoReturn:
    """Runs a command and exits. An error of ours becomes four lines (or JSON) and its exit code.

    passed: what the command takes by ``click.pass_obj``.
    """
    try:
        code = group.main(args=list(arguments), standalone_mode=False, obj=passed)
    except errors.HeliographError as error:
        show_error(error, "--json" in arguments)
        sys.exit(exit_code(error))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)
