"""One sequence that is being generated, and the prompt that it may share with others."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from heliograph.errors import UsageError
from heliograph.runtime.sampling import Sampling
from heliograph.runtime.steps import Seat
from heliograph.serve.frames import Gain, Settings, Submit


class State(enum.Enum):
    WAITING = "waiting"  # for a slot and blocks
    PREFILLING = "prefilling"
    DECODING = "decoding"
    ENDED = "ended"


NEXT: Mapping[State, frozenset[State]] = {
    State.WAITING: frozenset({State.PREFILLING, State.ENDED}),
    State.PREFILLING: frozenset({State.DECODING, State.ENDED}),
    State.DECODING: frozenset({State.ENDED}),
    State.ENDED: frozenset(),
}


class Prompt(msgspec.Struct, eq=False):
    """What the rows of one Submit have in common, and the blocks that they share.

    Shared are the whole blocks before the last token. Each row computes the last token itself, to sample its own
    first one, so nothing is ever written into a shared block that is stored.
    """

    tokens: tuple[int, ...]
    room: int  # tokens that a row may gain
    least: int
    stops: frozenset[int]
    settings: Settings
    total: int  # blocks that a row reaches at most, shared ones included
    common: int  # of them shared
    alive: int  # rows that have not ended
    block_tokens: int
    shared: list[int] | None = None  # the shared blocks, from the first row's admission to the last row's end
    stored: int = 0  # tokens that the shared blocks hold

    @classmethod
    def of(cls, submit: Submit, context: int, block_tokens: int) -> Prompt:
        count = len(submit.prompt)
        room = min(submit.limit, context - count)
        return cls(
            tokens=submit.prompt, room=room, least=submit.least, stops=frozenset(submit.stops),
            settings=submit.settings, total=-(-(count + room) // block_tokens),
            common=(count - 1) // block_tokens if len(submit.rows) > 1 else 0, alive=len(submit.rows),
            block_tokens=block_tokens,
        )  # fmt: skip

    def store(self, end: int) -> None:
        """The prompt's first ``end`` tokens are in the blocks of the row that is storing it."""
        self.stored = max(self.stored, min(end, self.common * self.block_tokens))


class Row:
    """A number, a seed, a prompt, and how far it has come. Ends once; whatever would end it again is refused."""

    __slots__ = ("blocks", "emitted", "number", "prompt", "seat", "seed", "slot", "state", "stored", "token")

    def __init__(self, number: int, seed: int, prompt: Prompt) -> None:
        self.number = number
        self.seed = seed
        self.prompt = prompt
        self.state = State.WAITING
        self.slot = -1
        self.blocks: list[int] = []
        self.seat: Seat | None = None
        self.stored = 0  # tokens that its blocks hold
        self.token = 0  # its last one, which the next step stores
        self.emitted = 0

    def admit(self, slot: int, blocks: list[int]) -> None:
        self._move(State.PREFILLING)
        self.slot, self.blocks = slot, blocks

    def start(self) -> None:
        self._move(State.DECODING)

    def gain(self, token: int) -> Gain:
        """What the token that follows brings the row. With an end in it, the row must be ended now."""
        prompt = self.prompt
        if self.emitted >= prompt.room:  # the prompt fills the context
            return Gain(self.number, (), "length")
        if token in prompt.stops:
            return Gain(self.number, (), "stop")
        self.token = token
        self.emitted += 1
        return Gain(self.number, (token,), "length" if self.emitted == prompt.room else "")

    def end(self) -> None:
        self._move(State.ENDED)

    def sampling(self) -> Sampling:
        """Of the next token: until ``least`` tokens are out a stop token's logit is minus infinity."""
        settings = self.prompt.settings
        bias = dict(settings.bias)
        if self.held_back:
            bias |= dict.fromkeys(self.prompt.stops, float("-inf"))
        return Sampling(**settings.numbers, bias=bias, seed=self.seed)

    @property
    def held_back(self) -> bool:
        """Whether no stop token may be chosen now."""
        return self.emitted < self.prompt.least

    def _move(self, state: State) -> None:
        if state not in NEXT[self.state]:
            raise UsageError(
                f"moving row {self.number}", found=f"a {self.state.value} row to become {state.value}",
                required=" or ".join(sorted(each.value for each in NEXT[self.state])) or "no further move",
                hint="this is a fault in Heliograph: please report it",
            )  # fmt: skip
        self.state = state
