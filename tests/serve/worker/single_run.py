"""What a row must gain: computed straight from the fake device's formula, without scheduler, blocks or buckets."""

from __future__ import annotations

from fake_device import NEVER, next_token

from heliograph.core.manifest import Text
from heliograph.runtime.sampling import Sampling
from heliograph.serve.frames import Submit


def single_run(submit: Submit, seed: int, text: Text) -> tuple[list[int], str]:
    """The tokens of a row and why it ended."""
    tokens = list(submit.prompt)
    gained: list[int] = []
    room = min(submit.limit, text.context - len(tokens))
    while len(gained) < room:
        held = dict.fromkeys(submit.stops, NEVER) if len(gained) < submit.least else {}
        given = submit.settings
        sampling = Sampling(**given.numbers, bias=dict(given.bias) | held, seed=seed)
        token = next_token(tokens, sampling, text.vocabulary)
        if token in submit.stops:
            return gained, "stop"
        gained.append(token)
        tokens.append(token)
    return gained, "length"
