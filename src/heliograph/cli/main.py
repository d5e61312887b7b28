"""What the console command calls: what must come before other imports, then the command.

``capture`` starts itself anew in its fixed environment. ``serve`` spawns its worker: the worker's interpreter then
starts while this one imports the command line. So this module imports next to nothing, not even ``typing``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command, by default that of this process, and exits."""
    words = sys.argv[1:] if arguments is None else arguments
    worker = None
    if words[:1] == ["capture"] and arguments is None:
        from heliograph.capture.environment import start_in_fixed_environment  # noqa: PLC0415

        start_in_fixed_environment()
    elif words[:1] == ["serve"] and not {"-h", "--help"} & {*words}:
        from heliograph.serve.front.spawn import spawn  # noqa: PLC0415

        worker = spawn()  # ends by itself if the command does not take it
    from heliograph.cli.group import run  # noqa: PLC0415 - 30 ms, in which a worker starts

    run(words, worker)
