"""What each row has been given: its tokens, its text, and exactly one end.

The journal is in memory; a front that dies loses it. It keeps what is needed to submit a row again as its prompt and
the tokens it has. Nothing here waits or writes: whoever owns a row is told through ``changed``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

import msgspec

from heliograph.serve.frames import Gain, Settings, Submit
from heliograph.serve.front.text_stream import StopString, TextStream


class End(Enum):
    STOP = "stop"  # a stop token or a stop string
    LENGTH = "length"  # as many tokens as were asked for, or as fit
    CANCELLED = "cancelled"  # the client has gone, or the server ends
    REFUSED = "refused"  # by the worker, as it came
    FAILED = "failed"  # the worker ended
    BROKEN = "broken"  # its text could not be made: a fault of ours


class Work(msgspec.Struct, frozen=True):
    """Rows to generate from one prompt: everything that decides their tokens."""

    prompt: Sequence[int]  # an array: a long one waits in memory for its turn
    seeds: tuple[int, ...]  # one a row
    limit: int
    least: int
    stop_tokens: tuple[int, ...]
    stop_strings: tuple[StopString, ...]
    settings: Settings


class Row(msgspec.Struct):
    """One sequence. ``take`` and ``finish`` are the journal's."""

    number: int
    seed: int
    work: Work
    text: TextStream
    changed: Callable[[int], None]  # with the number of tokens it was given just now
    tokens: list[int] = msgspec.field(default_factory=list)
    end: End | None = None
    message: str = ""  # why, when it was refused or failed
    fault: Exception | None = None  # what broke it

    def take(self, tokens: Sequence[int], end: str) -> None:
        """Adds tokens up to the row's end."""
        stopped = False
        for token in tokens[: self.work.limit - len(self.tokens)]:
            self.tokens.append(token)
            stopped = self.text.add(token)
            if stopped:
                break
        if stopped:
            self.end = End.STOP
        elif end or len(self.tokens) == self.work.limit:
            self.end = End.STOP if self.text.end() or end == "stop" else End.LENGTH

    def finish(self, end: End, message: str) -> None:
        self.end, self.message = end, message


class Journal:
    """The rows under way, by number. A row that has ended is forgotten here; its owner still has it."""

    def __init__(self) -> None:
        self._rows: dict[int, Row] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._rows)

    def open(self, work: Work, stream: Callable[[], TextStream], changed: Callable[[int], None]) -> tuple[Row, ...]:
        """New rows, numbered."""
        rows = tuple(
            Row(self._next + index, seed, work, stream(), changed) for index, seed in enumerate(work.seeds)
        )  # fmt: skip
        self._next += len(rows)
        self._rows |= {row.number: row for row in rows}
        return rows

    def take(self, gain: Gain) -> tuple[int, Row | None]:
        """What a launch gave one row: tokens kept, and the row if it has just ended.

        A row that is not here ended on this side while the frame was on its way; its tokens count nowhere.
        """
        row = self._rows.get(gain.row)
        if row is None:
            return 0, None
        had = len(row.tokens)
        try:
            row.take(gain.tokens, gain.end)
        except Exception as error:  # noqa: BLE001  who waits for the row raises it: other rows have no part in it
            row.end, row.fault = End.BROKEN, error
        kept = len(row.tokens) - had
        if row.end is not None:
            del self._rows[row.number]
        row.changed(kept)
        return kept, row if row.end is not None else None

    def finish(self, number: int, end: End, message: str = "") -> bool:
        """Ends a row otherwise than by its tokens; False if it had ended."""
        row = self._rows.pop(number, None)
        if row is None:
            return False
        row.finish(end, message)
        row.changed(0)
        return True

    def finish_all(self, end: End, message: str = "") -> None:
        for number in list(self._rows):
            self.finish(number, end, message)


def submit_of(rows: Sequence[Row]) -> Submit:
    """The frame that asks for rows of one piece of work."""
    work = rows[0].work
    return Submit(
        rows=tuple((row.number, row.seed) for row in rows), prompt=tuple(work.prompt), limit=work.limit,
        least=work.least, stops=work.stop_tokens, settings=work.settings,
    )  # fmt: skip
