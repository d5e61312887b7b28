"""Counters of launches. A round is a decode launch that was read back; prefill is counted apart.

Emitted tokens of rounds are those that decode launches added to the journal, after it cut them at stop strings and
limits: a request of 1,024 tokens counts 1,023, its first comes from prefill. So ``rounds`` times tokens a round is
``emitted``, and ``nanoseconds`` of rounds and prefill add up to the time in which the device was busy.
"""

from __future__ import annotations

import msgspec

from heliograph.serve.frames import Launched


class Rounds(msgspec.Struct):
    rounds: int = 0
    emitted: int = 0  # tokens
    nanoseconds: int = 0
    prefills: int = 0  # launches
    prefill_tokens: int = 0  # of prompts, padding left out
    prefill_nanoseconds: int = 0
    first_tokens: int = 0  # tokens that prefill gave

    def count(self, launched: Launched, kept: int) -> None:
        """``kept``: tokens of this launch that the journal kept."""
        if launched.entry == "decode":
            self.rounds += 1
            self.emitted += kept
            self.nanoseconds += launched.nanoseconds
        else:
            self.prefills += 1
            self.first_tokens += kept
            self.prefill_tokens += launched.real
            self.prefill_nanoseconds += launched.nanoseconds

    @property
    def tokens_per_round(self) -> float:
        return self.emitted / self.rounds if self.rounds else 0.0

    @property
    def milliseconds_per_round(self) -> float:
        return self.nanoseconds / self.rounds / 1e6 if self.rounds else 0.0
