"""What the console command calls: what must come before other imports, then the command.

``capture`` starts itself anew in its fixed environment. ``serve`` makes copies of this process that become its worker
and its renderer of chat templates. So this module imports next to nothing, not even ``typing``.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command, by default that of this process, and exits."""
    words = sys.argv[1:] if arguments is None else arguments
    copies = None
    if words[:1] == ["capture"] and arguments is None:
        from heliograph.capture.environment import start_in_fixed_environment  # noqa: PLC0415

        start_in_fixed_environment()
    elif words[:1] == ["serve"] and arguments is None and not {"-h", "--help"} & {*words}:
        gc.disable()  # until the server runs: imports make no garbage, and looking for it is an eighth of their time
        from heliograph.serve.fork import make_copies  # noqa: PLC0415

        copies = make_copies()  # they end by themselves if the command does not take them
    from heliograph.cli.group import run  # noqa: PLC0415 - 30 ms, in which a worker starts

    run(words, copies)
