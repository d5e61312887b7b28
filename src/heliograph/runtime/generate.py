"""Tokens from a language model's core: prompts in chunks, then one token a step for up to ``concurrency`` rows.

::

    for token in generate(program, text.encode_chat(messages), 100, Sampling(temperature=0.7, seed=1)):
        print(decoder.add(token), end="")

Nothing here samples: the graph does, from what :class:`Sampling` says. This is the plain way to run a core, without
a scheduler; every row has its blocks to itself.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from heliograph.core.manifest import Text
from heliograph.errors import UsageError
from heliograph.runtime.program import Program

PADDING = -1
CODES: Mapping[str, str] = {"i32": "i", "i64": "q", "f32": "f"}


@dataclass(frozen=True, slots=True)
class Sampling:
    """What decides a row's tokens. The defaults take the most likely token, the lowest id among equals."""

    temperature: float = 0.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    bias: Mapping[int, float] = field(default_factory=dict)  # token -> added to its logit
    logprobs: int = 0  # most likely tokens to report
    seed: int = 0


@dataclass(slots=True)
class Row:
    """A sequence: its tokens so far, how many of them the key/value memory holds, its slot and blocks."""

    ids: list[int]
    sampling: Sampling
    slot: int
    blocks: list[int] = field(default_factory=list)
    stored: int = 0


def generate(program: Program, ids: Sequence[int], limit: int, sampling: Sampling | None = None) -> Iterator[int]:
    """At most ``limit`` tokens after ``ids``; ends before an end-of-text token and at the core's context."""
    generator = Generator(program)
    row = generator.add(ids, sampling or Sampling())
    room = min(limit, generator.text.context - len(ids))
    token = generator.prefill(row)
    for step in range(room):
        if token in generator.text.eos:
            return
        yield token
        if step + 1 < room:
            (token,) = generator.decode([row])


class Generator:
    """Rows of one program. It owns the program's growing state while it is used; one thread at a time."""

    def __init__(self, program: Program) -> None:
        text = program.core.text
        if text is None or not {"decode", "prefill"} <= program.entries.keys():
            raise UsageError(
                f"generating with {program.name}", found="a core of no language model",
                required="a core with a tokenizer and entries decode and prefill", hint="use run for other models",
            )  # fmt: skip
        self.program = program
        self.text: Text = text
        self._slots = list(range(text.concurrency - 1, -1, -1))
        self._blocks = list(range(program.units - 1, 0, -1))  # unit 0 is padding
        self._table = -(-text.context // text.block_tokens)
        chunks = [dict(bucket.shape) for bucket in program.entries["prefill"].buckets]
        self._largest = chunks[-1]["tokens"]
        self._biases = program.buffer("prefill", chunks[-1], "bias_ids").shape[-1]

    def add(self, ids: Sequence[int], sampling: Sampling) -> Row:
        """A row that begins with ``ids``. Refused: no tokens, more than the context, ids outside the vocabulary."""
        wrong = [token for token in ids if not 0 <= token < self.text.vocabulary]
        if not 1 <= len(ids) <= self.text.context or wrong:
            raise UsageError(
                f"generating with {self.program.name}",
                found=f"token {wrong[0]}" if wrong else f"{len(ids)} tokens",
                required=f"1 to {self.text.context} tokens below {self.text.vocabulary}",
                hint="shorten the prompt, or encode it with this core's tokenizer",
            )  # fmt: skip
        if len(sampling.bias) > self._biases:
            raise UsageError(
                f"generating with {self.program.name}", found=f"{len(sampling.bias)} logit biases",
                required=f"{self._biases} at most", hint="leave out the smallest ones",
            )  # fmt: skip
        if not self._slots:
            raise UsageError(
                f"generating with {self.program.name}", found=f"{self.text.concurrency + 1} rows",
                required=f"{self.text.concurrency}, the core's concurrency", hint="remove a row first",
            )  # fmt: skip
        return Row(list(ids), sampling, self._slots.pop())

    def remove(self, row: Row) -> None:
        """Gives the row's slot and blocks back."""
        self._slots.append(row.slot)
        self._blocks += row.blocks
        row.blocks = []

    def prefill(self, row: Row) -> int:
        """Stores the row's tokens in chunks and returns the token after them, which becomes the row's last."""
        token = PADDING
        while row.stored < len(row.ids):
            token = self._chunk(row, row.ids[row.stored : row.stored + self._largest])
        row.ids.append(token)
        return token

    def decode(self, rows: Sequence[Row]) -> list[int]:
        """One more token of each row."""
        shape = self.program.bucket("decode", rows=len(rows))
        for row in rows:
            self._make_room(row, len(row.ids))
        padding = shape["rows"] - len(rows)
        positions = [row.stored for row in rows]
        inputs: dict[str, Sequence[float]] = {
            "ids": [row.ids[row.stored] for row in rows] + [0] * padding,
            "positions": positions + [PADDING] * padding,
            "tables": [block for row in rows for block in self._padded(row)] + [0] * self._table * padding,
            **self._sampling(rows, [position + 1 for position in positions], padding),
        }
        self._run("decode", shape, inputs)
        tokens = list(self.program.view("decode", shape, "sampled").cast("i"))[: len(rows)]
        for row, token in zip(rows, tokens, strict=True):
            row.ids.append(token)
            row.stored += 1
        return tokens

    def _chunk(self, row: Row, ids: Sequence[int]) -> int:
        shape = self.program.bucket("prefill", tokens=len(ids))
        end = row.stored + len(ids)
        self._make_room(row, end)
        padding = shape["tokens"] - len(ids)
        inputs: dict[str, Sequence[float]] = {
            "ids": [*ids, *[0] * padding],
            "positions": [*range(row.stored, end), *[PADDING] * padding],
            "tables": self._padded(row),
            "last_row": [len(ids) - 1],
            **self._sampling([row], [end], 0),
        }
        self._run("prefill", shape, inputs)
        row.stored = end
        return int(self.program.view("prefill", shape, "sampled").cast("i")[0])

    def _run(self, entry: str, shape: Mapping[str, int], inputs: Mapping[str, Sequence[float]]) -> None:
        for name, values in inputs.items():
            code = CODES[self.program.buffer(entry, shape, name).dtype]
            self.program.write(entry, shape, name, array(code, values).tobytes())
        self.program.run(entry, **shape)

    def _make_room(self, row: Row, tokens: int) -> None:
        """Blocks for the row's first ``tokens`` tokens."""
        needed = -(-tokens // self.text.block_tokens) - len(row.blocks)
        if needed > len(self._blocks) or tokens > self.text.context:
            raise UsageError(
                f"generating with {self.program.name}", found=f"a row of {tokens} tokens",
                required=f"{self.text.context} at most and {max(needed, 0)} free blocks ({len(self._blocks)} left)",
                hint="generate fewer tokens, or load the core with more memory",
            )  # fmt: skip
        row.blocks += [self._blocks.pop() for _ in range(needed)]

    def _padded(self, row: Row) -> list[int]:
        return row.blocks + [0] * (self._table - len(row.blocks))

    def _sampling(self, rows: Sequence[Row], lengths: Sequence[int], padding: int) -> dict[str, Sequence[float]]:
        """The sampling inputs of rows whose next token stands at ``lengths``."""
        settings = [row.sampling for row in rows]
        zeros: list[float] = [0] * padding
        none: list[float] = [PADDING] * padding
        return {
            "slots": [*(row.slot for row in rows), *none],
            "lengths": [*lengths, *zeros],
            "sample_position": [*lengths, *zeros],
            "seed": [*(_signed(each.seed) for each in settings), *zeros],
            "mask_index": [PADDING] * (len(rows) + padding),
            "bias_ids": [token for each in settings for token in self._biased(each.bias, PADDING)]
            + none * self._biases,
            "bias_values": [x for each in settings for x in self._biased(each.bias.values(), 0)] + zeros * self._biases,
            "logprob_count": [*(each.logprobs for each in settings), *zeros],
            **{
                name: [*(getattr(each, name) for each in settings), *zeros]
                for name in ("temperature", "top_k", "top_p", "min_p", "presence", "frequency", "repetition")
            },
        }

    def _biased(self, given: Iterable[float], rest: float) -> list[float]:
        """A row's places for biases, the unused ones filled with ``rest``."""
        listed = list(given)
        return listed + [rest] * (self._biases - len(listed))


def _signed(seed: int) -> int:
    """The low 64 bits of a seed as the graph reads them."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)
