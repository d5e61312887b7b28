"""The checker: a fresh process without torch loads the draft, replays it, and says what it found.

It runs twice. The first time it explores: what the self-tests give, which scratch matters, what everything costs. Its
findings go into the core. The second time it confirms, on exactly the bytes that get signed, that nothing is left to
find. Whatever it finds that cannot be kept stops the export.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from heliograph.capture.environment import child_environment
from heliograph.core.encoding import decode
from heliograph.core.manifest import Core, Slice
from heliograph.core.report import NARROWING_TIMES, PATTERNS, Padding, Report, Request, Try
from heliograph.core.sign import SigningKey
from heliograph.core.write import Draft, DraftWriter
from heliograph.errors import CheckerError

TRIES = 8  # processes of one run, at most, that each may take the limit; narrowing comes on top


@dataclass(frozen=True, slots=True)
class Checking:
    """How the checker is asked. ``limit_seconds`` bounds one try: all buckets under one scratch pattern."""

    key: SigningKey
    padding: tuple[Padding, ...]
    workers: int = 0
    memory_limit: int = 0
    limit_seconds: int = 600
    index: int = 0  # of the CUDA device

    def run(self, draft: Draft, mode: str) -> Report:
        """One run of the checker. CheckerError if it fails, or if the draft is not what was captured."""
        request = Request(
            public_key=self.key.public_bytes.hex(),
            mode=mode,
            workers=self.workers,
            limit_seconds=self.limit_seconds,
            memory_limit=self.memory_limit,
            index=self.index,
            padding=self.padding,
        )
        limit = self.limit_seconds * (TRIES + NARROWING_TIMES * (len(PATTERNS) - 1) * len(draft.core.graphs))
        try:
            ended = subprocess.run(  # noqa: S603 - our own module, no shell
                [sys.executable, "-m", "heliograph.runtime.check", str(draft.path), str(os.getpid())],
                input=msgspec.json.encode(request),
                capture_output=True,
                env=child_environment(),
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise _refused(f"no answer in {limit} seconds", "an answer in time") from error
        if ended.returncode != 0:
            said = ended.stderr.decode(errors="replace").strip()
            raise _refused(said or f"exit status {ended.returncode}", "a draft that a fresh process can load")
        report = decode(ended.stdout, Report, "reading the checker's report")
        check_report(report, draft.core)
        return report


def check_report(report: Report, core: Core) -> None:
    """Everything that was counted, and the order, are as recorded; no try failed outright."""
    for ended in report.tries:
        if ended.outcome in ("fault", "timeout"):
            raise _refused(f"a {ended.outcome} with scratch of {ended.pattern}: {ended.fault}", "replays that end")
    _check_numbers(report, core)
    _check_padding(report, core)
    if report.torch_loaded:
        raise _refused("a library of torch in the checker's process", "a replay without torch")
    graph_counters = (counter for graph in report.graphs for counter in graph.counters)
    for counter in (*report.counters, *graph_counters):
        if counter.recorded != counter.rebuilt:
            raise _refused(f"{counter.rebuilt} {counter.name} after the rebuild", f"{counter.recorded}, as recorded")
    for graph in report.graphs:
        recorded = core.graphs[graph.graph]
        if not graph.same_order or graph.flags != recorded.flags:
            raise _refused(f"another order or flags {graph.flags} in {recorded.name!r}", "order and flags as captured")
    if not report.self_tests:
        raise _refused("no result", "a first replay that gives results")


def _check_numbers(report: Report, core: Core) -> None:
    """No NaN in a real row. With other scratch than zeros a NaN is one more way to differ."""
    for ended in report.tries:
        for difference in ended.differences:
            if difference.nan and ended.pattern == "zeros" and not ended.poisoned_padding:
                where = f"output {difference.field!r} of {core.graphs[difference.graph].name!r}"
                raise _refused(f"a NaN in {where}, case {difference.case}", "numbers in every real row")


def _check_padding(report: Report, core: Core) -> None:
    """Real rows must not depend on padding rows: a try that differs only when they are poisoned."""
    plain = {ended.pattern: ended.outcome for ended in report.tries if not ended.poisoned_padding}
    for ended in report.tries:
        if ended.poisoned_padding and ended.outcome == "different" and plain.get(ended.pattern) == "equal":
            raise _refused(
                f"{_told(ended, core)}, and only while padding rows are poisoned",
                "real rows that depend on no other row",
            )


def merged(core: Core, report: Report, writer: DraftWriter) -> Core:
    """The core with what the checker found to matter: initial content of scratch. Constants must not be written.

    Nothing puts scratch back between launches: a range that replays change, or in which another graph works, gives
    other results among left-overs, and the second run does not confirm it.
    """
    for found in report.narrowed:
        if found.role != "scratch":
            raise _refused(f"a replay that writes to {found.buffer!r} in {found.role}", "constants that are only read")
    if not report.narrowed:
        return core
    (scratch,) = (region for region in core.regions if region.role == "scratch")
    pieces = [(part.offset, writer.read_blob(part.blob)) for part in scratch.initial]  # the capture's own
    pieces += [(found.offset, found.content) for found in report.narrowed]
    kept = tuple(
        Slice(offset=offset, size=len(data), blob=writer.put_blob(data)) for offset, data in painted(pieces).items()
    )
    regions = tuple(
        msgspec.structs.replace(region, initial=kept) if region is scratch else region for region in core.regions
    )
    return msgspec.structs.replace(core, regions=regions)


def painted(pieces: Iterable[tuple[int, bytes]]) -> dict[int, bytes]:
    """Content by offset, ascending; pieces that overlap or touch are joined, the later one on top."""
    joined: dict[int, bytearray] = {}
    start = -1
    for offset, content in sorted(pieces, key=lambda piece: piece[0]):
        at = offset - start
        if start < 0 or at > len(joined[start]):
            start, at = offset, 0
            joined[start] = bytearray()
        joined[start][at : at + len(content)] = content
    return {offset: bytes(data) for offset, data in joined.items()}


def check_confirmed(report: Report, core: Core, findings: Sequence[str]) -> None:
    """CheckerError unless every try of a confirming run gave equal results."""
    for ended in report.tries:
        if ended.outcome != "equal":
            raise _refused(
                _told(ended, core) + "".join(f"; {each}" for each in findings),
                "results that depend on inputs and state alone",
            )


def findings(report: Report) -> tuple[str, ...]:
    """What was merged, for the record."""
    return tuple(
        f"{each.buffer or each.role}: {each.size} bytes at {each.offset} of {each.role} kept as initial content"
        for each in report.narrowed
    )


def _told(ended: Try, core: Core) -> str:
    names = sorted({f"{core.graphs[each.graph].name} {each.field}" for each in ended.differences})
    return f"other results with scratch of {ended.pattern}: {', '.join(names)}"


def _refused(found: str, required: str) -> CheckerError:
    return CheckerError(
        "checking the draft in a fresh process",
        found=found,
        required=required,
        hint="a tensor that is read before it is written (torch.empty), or a kernel that depends on left-over memory, "
        "shows like this; nothing was published",
    )
