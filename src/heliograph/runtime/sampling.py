"""What decides a row's tokens. The graph samples; this is what it reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec


class Settings(msgspec.Struct, frozen=True):
    """Numbers that all rows of a request have in common. The defaults take the most likely token, the lowest id among
    equals."""

    temperature: float = 0.0
    top_k: Annotated[int, msgspec.Meta(ge=0, le=1 << 53)] = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0

    @property
    def numbers(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in Settings.__struct_fields__}


class Sampling(Settings, frozen=True):
    """All that one row is sampled by."""

    bias: Mapping[int, float] = msgspec.field(default_factory=dict)  # token -> added to its logit
    logprobs: int = 0  # most likely tokens to report
    seed: int = 0
