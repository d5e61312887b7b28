"""Rounds: asks the scheduler what comes next, runs it on the device, tells what every row gained.

Between rounds it takes in rows and lets go of those whose client has left, whose slot and blocks are then free at
once. Every row that was submitted ends exactly once, in a Launched or in an Ended.

Buckets are built and self-tested one at a time. First those of a start: what any request needs, the largest prefill
and decode, then the smallest of both. A row begins as soon as it can, so these builds take turns with rounds. Then the
others, the largest decode bucket first: whenever nothing has been to do for ``limits.quiet``, and under steady load one
every ``limits.rounds_between_builds`` rounds, so that all get built; a running stream then waits for one bucket's
self-test besides the round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from heliograph.errors import ProtocolError, UsageError
from heliograph.runtime.steps import Seat
from heliograph.serve.frames import Cancel, Ended, Gain, Launched, Submit
from heliograph.serve.limits import LIMITS, Limits
from heliograph.serve.worker.device import Clock, Device
from heliograph.serve.worker.refusals import refusal
from heliograph.serve.worker.row import Prompt, Row
from heliograph.serve.worker.scheduler import Chunk, Decode, Scheduler


class Engine:
    """All rows of one core. One thread."""

    def __init__(self, device: Device, clock: Clock, limits: Limits = LIMITS) -> None:
        self._device = device
        self._clock = clock
        self._limits = limits
        self._scheduler = Scheduler(device.text.concurrency, device.units)
        self._rows: dict[int, Row] = {}  # those that have not ended, by number
        self._ready: dict[str, list[int]] = {}
        self._unbuilt: list[tuple[str, int]] = []  # in the order in which they are built
        sizes = device.sizes
        at_start = [(entry, sizes[entry][end]) for end in (-1, 0) for entry in ("prefill", "decode")]
        others = [(entry, size) for entry in ("decode", "prefill") for size in reversed(sizes[entry])]
        self._at_start = frozenset(at_start)
        self._order = tuple(dict.fromkeys(at_start + others))
        self.testing = 0  # nanoseconds that builds took
        self._rounds = 0  # since the last build
        self._survey()

    # ---- what comes in ------------------------------------------------------------------------------------------

    def submit(self, submit: Submit) -> list[Ended]:
        """Queues the rows, or refuses all of them."""
        known = [number for number, _ in submit.rows if number in self._rows]
        if known or len({number for number, _ in submit.rows}) < len(submit.rows):
            raise ProtocolError(
                "taking in rows", found=f"rows {[number for number, _ in submit.rows]}, of which {known} are under way",
                required="numbers that were never used", hint="this is a fault in Heliograph: please report it",
            )  # fmt: skip
        text = self._device.text
        prompt = Prompt.of(submit, text.context, text.block_tokens)
        reason = refusal(submit, prompt, self._device) or self._crowded(len(submit.rows))
        if reason:
            return [Ended(number, "refused", self._scheduler.load, reason) for number, _ in submit.rows]
        for number, seed in submit.rows:
            self._rows[number] = row = Row(number, seed, prompt)
            self._scheduler.add(row)
        return []

    def cancel(self, cancel: Cancel) -> list[Ended]:
        """Ends rows; their slots and blocks are free when this returns."""
        ended = []
        for number in cancel.rows:
            row = self._rows.get(number)
            if row is not None:
                self._end(row)
                ended.append(Ended(number, "cancelled", self._scheduler.load))
        return ended

    def _crowded(self, more: int) -> str:
        most = self._limits.rows
        return f"{len(self._rows)} rows wait or run, {more} more exceed {most}" if len(self._rows) + more > most else ""

    # ---- rounds -------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a round would launch anything."""
        return bool(self._rows)

    @property
    def able(self) -> bool:
        """Whether a row can begin."""
        return bool(self._ready["prefill"])

    @property
    def starting(self) -> bool:
        """Whether buckets of the start are not built and tested."""
        return not self._at_start.isdisjoint(self._unbuilt)

    @property
    def unbuilt(self) -> int:
        """Buckets that are not built and tested."""
        return len(self._unbuilt)

    def round(self) -> Iterator[Launched]:
        """A decode launch of all decoding rows and one chunk of a prompt, each told as soon as it is done. Take all
        before the next call."""
        for row in self._scheduler.admit():
            self._seat(row)
        work = self._scheduler.next_round(self._ready)
        if work.decode is not None:
            yield self._decode(work.decode)
        if work.chunk is not None:
            yield self._prefill(work.chunk)
        self._rounds += 1
        if self._rounds >= self._limits.rounds_between_builds:
            self.build()

    def build(self) -> None:
        """Builds and self-tests one bucket, if one is left."""
        self._rounds = 0
        if self._unbuilt:
            start = self._clock()
            self._device.prepare(*self._unbuilt[0])
            self.testing += self._clock() - start
            self._survey()

    def _decode(self, work: Decode) -> Launched:
        start = self._clock()
        rows = work.rows
        tokens = self._device.decode(
            work.bucket, [_seat(row) for row in rows], [row.token for row in rows], [row.stored for row in rows]
        )
        end = self._clock()
        gains = []
        for row, token in zip(rows, tokens, strict=True):
            row.stored += 1
            gains.append(self._gain(row, token))
        return self._launched("decode", work.bucket, len(rows), end - start, gains)

    def _prefill(self, work: Chunk) -> Launched:
        row, prompt = work.row, work.row.prompt
        start = self._clock()
        if row.stored < work.start:  # the blocks up to there were stored by another row
            self._device.remember(row.slot, prompt.tokens[: work.start])
        token = self._device.prefill(work.bucket, _seat(row), prompt.tokens[work.start : work.end], work.start)
        end = self._clock()
        row.stored = work.end
        prompt.store(work.end)
        gains = []
        if row.stored == len(prompt.tokens):
            self._scheduler.start(row)
            gains.append(self._gain(row, token))
        return self._launched("prefill", work.bucket, work.end - work.start, end - start, gains)

    def _gain(self, row: Row, token: int) -> Gain:
        held_back = row.held_back
        gain = row.gain(token)
        if gain.end:
            self._end(row)
        elif held_back and not row.held_back:
            self._seat(row)
        return gain

    # ---- bookkeeping --------------------------------------------------------------------------------------------

    def _launched(
        self, entry: Literal["decode", "prefill"], bucket: int, real: int, nanoseconds: int, gains: Sequence[Gain]
    ) -> Launched:
        return Launched(
            entry=entry, bucket=bucket, real=real, nanoseconds=nanoseconds, gains=tuple(gains),
            load=self._scheduler.load, prepared=sum(map(len, self._ready.values())),
        )  # fmt: skip

    def _seat(self, row: Row) -> None:
        row.seat = self._device.seat(row.slot, row.blocks, row.sampling(), len(row.prompt.tokens))

    def _end(self, row: Row) -> None:
        self._scheduler.end(row)
        del self._rows[row.number]

    def _survey(self) -> None:
        """Which buckets are ready, and which come next."""
        sizes, is_ready = self._device.sizes, self._device.is_ready
        self._ready = {entry: [size for size in sizes[entry] if is_ready(entry, size)] for entry in sizes}
        self._unbuilt = [(entry, size) for entry, size in self._order if not is_ready(entry, size)]


def _seat(row: Row) -> Seat:
    if row.seat is None:
        raise UsageError(
            f"launching row {row.number}", found="no seat", required="a row that was admitted",
            hint="this is a fault in Heliograph: please report it",
        )  # fmt: skip
    return row.seat
