"""What decides a row's tokens. The graph samples; this is what it reads."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Sampling(msgspec.Struct, frozen=True):
    """The defaults take the most likely token, the lowest id among equals."""

    temperature: float = 0.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    bias: Mapping[int, float] = msgspec.field(default_factory=dict)  # token -> added to its logit
    logprobs: int = 0  # most likely tokens to report
    seed: int = 0
