"""A language model's buckets, filled and run: one token of each of many rows, or a chunk of one row's prompt.

::

    with Steps(program) as steps:
        seat = steps.seat(slot=0, blocks=[1, 2, 3], sampling=Sampling(seed=1), prompt=len(prompt))
        token = steps.prefill(16, seat, prompt, 0)
        (token,) = steps.decode(1, [seat], [token], [len(prompt)])

Everything about a row that stays the same from step to step is its :class:`Seat`. A bucket remembers who sat in each
of its rows at its last run, so a step writes only what moved: ids, positions, lengths. Written through views that are
held open, in place where the host can address the device's memory; the sampled tokens are read the same way.

One Steps a program, one thread at a time; after ``program.reset()`` make a new one.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Literal

from heliograph.core.manifest import Text
from heliograph.errors import UsageError
from heliograph.runtime.program import Program
from heliograph.runtime.sampling import Sampling, Settings

PADDING = -1
CODES: Mapping[str, Literal["i", "q", "f"]] = {"i32": "i", "i64": "q", "f32": "f"}
_SETTINGS = Settings.__struct_fields__
_WRITTEN = (
    "ids", "positions", "tables", "real", "slots", "lengths", "prompts", *_SETTINGS, "bias_ids", "bias_values",
    "mask_index", "seed", "sample_position", "logprob_count",
)  # fmt: skip
_DIMENSIONS: Mapping[str, str] = {"decode": "rows", "prefill": "tokens"}


class Seat:
    """A row's slot, blocks and settings, in the form in which buckets hold them. Never changed: a row whose blocks or
    settings change gets a new one."""

    __slots__ = ("bias_ids", "bias_values", "prompt", "sampling", "seed", "slot", "table")

    def __init__(self, slot: int, table: array[int], sampling: Sampling, prompt: int, biases: int) -> None:
        """``table``: the blocks of a sequence of full length, unused entries 0. ``biases``: the core's places."""
        self.slot = slot
        self.prompt = prompt
        self.table = table
        self.sampling = sampling
        self.seed = (sampling.seed + (1 << 63)) % (1 << 64) - (1 << 63)  # the low 64 bits, as the graph reads them
        rest = biases - len(sampling.bias)
        self.bias_ids = array("i", [*sampling.bias, *[PADDING] * rest])
        self.bias_values = array("f", [*sampling.bias.values(), *[0.0] * rest])


class Steps:
    """Fills and runs the buckets of ``decode`` and ``prefill``. Close it before the program, or use it as a context."""

    def __init__(self, program: Program) -> None:
        text = program.core.text
        if text is None or not {"decode", "prefill"} <= program.entries.keys():
            raise UsageError(
                f"generating with {program.name}", found="a core of no language model",
                required="a core with a tokenizer and entries decode and prefill", hint="use run for other models",
            )  # fmt: skip
        self.program = program
        self.text: Text = text
        self.sizes: Mapping[str, tuple[int, ...]] = {
            entry: tuple(dict(bucket.shape)[dimension] for bucket in program.entries[entry].buckets)
            for entry, dimension in _DIMENSIONS.items()
        }
        self.blocks_of_sequence = -(-text.context // text.block_tokens)
        self.biases: int = program.buffer("prefill", {"tokens": self.sizes["prefill"][-1]}, "bias_ids").shape[-1]
        self._decode: dict[int, _Rows] = {}
        self._prefill: dict[int, _Rows] = {}

    # ---- rows ---------------------------------------------------------------------------------------------------

    def seat(self, slot: int, blocks: Sequence[int], sampling: Sampling, prompt: int = 0) -> Seat:
        """``prompt``: so many first tokens were not generated, and presence and frequency do not count them.

        UsageError for more biases or blocks than the core has places for.
        """
        for what, found, most in (
            ("logit biases", len(sampling.bias), self.biases),
            ("blocks", len(blocks), self.blocks_of_sequence),
        ):
            if found > most:
                raise UsageError(
                    f"generating with {self.program.name}", found=f"{found} {what}",
                    required=f"{most} at most", hint="leave some out",
                )  # fmt: skip
        table = array("i", [*blocks, *[0] * (self.blocks_of_sequence - len(blocks))])
        return Seat(slot, table, sampling, prompt, self.biases)

    def remember(self, slot: int, ids: Sequence[int]) -> None:
        """Puts tokens that no bucket of this slot stored (their blocks came from another row) where penalties look."""
        self.program.write_state("history", 4 * slot * self.text.context, memoryview(array("i", ids)))

    # ---- buckets ------------------------------------------------------------------------------------------------

    @property
    def units(self) -> int:
        """KV blocks, the padding block 0 included."""
        return self.program.units

    def is_ready(self, entry: str, size: int) -> bool:
        return self.program.is_ready(entry, **{_DIMENSIONS[entry]: size})

    def prepare(self, entry: str, size: int) -> None:
        """Builds and self-tests a bucket."""
        self.program.prepare(entry, **{_DIMENSIONS[entry]: size})

    def decode(self, size: int, seats: Sequence[Seat], ids: Sequence[int], positions: Sequence[int]) -> list[int]:
        """Runs the bucket of ``size`` rows: token ``ids[r]`` of row r stands at ``positions[r]``; the next of each."""
        rows = self._decode.get(size) or self._open(self._decode, "decode", size)
        rows.sit(seats)
        rows.fill(ids, positions, [position + 1 for position in positions])
        rows.send()
        self.program.run("decode", rows=size)
        rows.fetch()
        tokens: list[int] = rows.sampled[: len(seats)].tolist()
        return tokens

    def prefill(self, size: int, seat: Seat, ids: Sequence[int], start: int) -> int:
        """Runs the bucket of ``size`` tokens on ``ids``, the first of which stands at ``start``; the token after them,
        which counts only if the prompt ends there."""
        rows = self._prefill.get(size) or self._open(self._prefill, "prefill", size)
        end = start + len(ids)
        rows.sit((seat,))
        rows.fill(ids, range(start, end), (end,))
        rows.send()
        self.program.run("prefill", tokens=size)
        rows.fetch()
        return int(rows.sampled[0])

    def _open(self, opened: dict[int, _Rows], entry: str, size: int) -> _Rows:
        rows = opened[size] = _Rows(self.program, entry, {_DIMENSIONS[entry]: size})
        return rows

    # ---- life ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Lets go of the program's memory. Idempotent."""
        for opened in (self._decode, self._prefill):
            for rows in opened.values():
                rows.close()
            opened.clear()

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class _Rows:
    """One bucket: views of its fields, and who sits in each sampled row."""

    def __init__(self, program: Program, entry: str, shape: Mapping[str, int]) -> None:
        self._held = held = program.hold(entry, shape)
        self.send, self.fetch = held.send, held.fetch
        views: dict[str, memoryview[Any]] = {
            name: held.view(name).cast(CODES[program.buffer(entry, shape, name).dtype])
            for name in (*_WRITTEN, *(("last_row",) if entry == "prefill" else ()), "sampled")
        }
        self._views = views
        self.sampled = views["sampled"]
        self._ids, self._positions = views["ids"], views["positions"]
        self._lengths, self._sample_position = views["lengths"], views["sample_position"]
        self._real, self._last = views["real"], views.get("last_row")
        self._slots, self._tables, self._seed = views["slots"], views["tables"], views["seed"]
        self._settings = [(name, views[name]) for name in _SETTINGS]
        self._padding = memoryview(array("i", [PADDING]) * len(self._positions))
        self._seats: list[Seat | None] = [None] * len(self._slots)
        for row in range(len(self._seats)):
            self._leave(row)

    def sit(self, seats: Sequence[Seat]) -> None:
        """Row r belongs to ``seats[r]``; those after the last are padding."""
        for row, seat in enumerate(seats):
            if seat is not self._seats[row]:
                self._enter(row, seat)
        for row in range(len(seats), len(self._seats)):
            if self._seats[row] is not None:
                self._leave(row)

    def fill(self, ids: Sequence[int], positions: Sequence[int], ends: Sequence[int]) -> None:
        """The bucket's real tokens and where they stand; the next token of row r stands at ``ends[r]``."""
        real = len(ids)
        self._ids[:real] = array("i", ids)
        self._positions[:real] = array("i", positions)
        self._positions[real:] = self._padding[real:]
        nexts = array("i", ends)
        self._lengths[: len(nexts)] = nexts
        self._sample_position[: len(nexts)] = nexts
        self._real[0] = real
        if self._last is not None:
            self._last[0] = real - 1

    def _enter(self, row: int, seat: Seat) -> None:
        self._seats[row] = seat
        self._slots[row] = seat.slot
        self._views["prompts"][row] = seat.prompt
        self._seed[row] = seat.seed
        for name, view in self._settings:
            view[row] = getattr(seat.sampling, name)
        for name, values in (("tables", seat.table), ("bias_ids", seat.bias_ids), ("bias_values", seat.bias_values)):
            self._views[name][row * len(values) : (row + 1) * len(values)] = values
        self._views["mask_index"][row] = PADDING
        self._views["logprob_count"][row] = seat.sampling.logprobs

    def _leave(self, row: int) -> None:
        """Padding is a slot and a position below zero; block 0 is nobody's."""
        self._seats[row] = None
        self._slots[row] = PADDING
        width = len(self._tables) // len(self._slots)
        self._tables[row * width : (row + 1) * width] = array("i", [0]) * width

    def close(self) -> None:
        for view in self._views.values():
            view.release()
        self._held.close()
