"""The checker: ``python -m heliograph.runtime.check DRAFT PARENT``, a request on stdin, a report on stdout.

It loads nothing itself. Each try is a process of its own with a time limit, started from here; a try that faults or
hangs leaves on a shared page which node it was at. What the tries say is compared here.

Exit status 0: the report is on stdout, good or bad. 1: the draft could not be loaded; the error is on stderr. Of a
try's process also 3: its device faulted; a host device's fault ends the process by a signal instead.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from heliograph.core.encoding import encode
from heliograph.core.manifest import Record
from heliograph.core.report import Request
from heliograph.device.ending import end_with
from heliograph.errors import DeviceFaultError, HeliographError, UsageError
from heliograph.runtime.attempt import FAULTED, Attempt
from heliograph.runtime.patterns import Pattern
from heliograph.runtime.plan import check_executables
from heliograph.runtime.tries import Checker


def main(arguments: Sequence[str]) -> int:
    """``DRAFT PARENT`` checks; ``DRAFT PARENT STATUS PROGRESS try PATTERN POISON`` and ``… narrow PATTERN GRAPH CASE``
    are its children."""
    stdin = sys.stdin.buffer.read()
    try:
        result = answer_to(arguments, stdin)
    except HeliographError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return FAULTED if isinstance(error, DeviceFaultError) else 1
    sys.stdout.buffer.write(encode(result))
    return 0


def answer_to(arguments: Sequence[str], stdin: bytes) -> Record:
    """What is printed. CheckerError if executables together take more of the device than loads reserve for them."""
    try:
        request = msgspec.json.decode(stdin, type=Request)
    except msgspec.DecodeError as error:
        raise _usage(str(error)) from error
    match arguments:
        case [draft, parent]:
            end_with(int(parent))
            report = Checker(Path(draft), request).run()
            check_executables(
                sum(each.recorded for graph in report.graphs for each in graph.counters if each.name == "nodes"),
                sum(graph.device_bytes for graph in report.graphs),
            )
            return report
        case [draft, parent, status, progress, "try", pattern, poison]:
            end_with(int(parent))
            attempt = Attempt(Path(draft), request, int(status), int(progress))
            return attempt.replay(Pattern(pattern), poison=poison == "poison")
        case [draft, parent, status, progress, "narrow", pattern, graph, case]:
            end_with(int(parent))
            attempt = Attempt(Path(draft), request, int(status), int(progress))
            return attempt.narrow(Pattern(pattern), int(graph), int(case))
        case _:
            raise _usage(" ".join(arguments) or "no argument")


def _usage(found: str) -> UsageError:
    return UsageError(
        "checking a draft",
        found=found,
        required="the draft's folder and the process that asks as arguments, and a request on stdin",
        hint="capture starts the checker; use verify or replay for a finished core",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
