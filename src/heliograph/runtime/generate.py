"""Tokens from a language model's core: the prompt in chunks, then one token a step.

::

    for token in generate(program, text.encode_chat(messages), 100, Sampling(temperature=0.7, seed=1)):
        print(decoder.add(token), end="")

Nothing here samples: the graph does, from what :class:`Sampling` says. This is the plain way to run a core: one row,
no scheduler. ``serve.worker`` runs many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from heliograph.errors import UsageError
from heliograph.runtime.program import Program
from heliograph.runtime.sampling import Sampling
from heliograph.runtime.steps import Steps


def generate(program: Program, ids: Sequence[int], limit: int, sampling: Sampling | None = None) -> Iterator[int]:
    """At most ``limit`` tokens after ``ids``; ends before an end-of-text token and at the core's context.

    It has the program to itself until it is exhausted or closed. UsageError: no tokens, more than the context, ids
    outside the vocabulary, more tokens than the memory holds, more biases than the core has places for.
    """
    with Steps(program) as steps:
        text = steps.text
        wrong = [token for token in ids if not 0 <= token < text.vocabulary]
        if not 1 <= len(ids) <= text.context or wrong:
            raise UsageError(
                f"generating with {program.name}",
                found=f"token {wrong[0]}" if wrong else f"{len(ids)} tokens",
                required=f"1 to {text.context} tokens below {text.vocabulary}",
                hint="shorten the prompt, or encode it with this core's tokenizer",
            )  # fmt: skip
        end = min(len(ids) + limit, text.context)
        blocks = -(-end // text.block_tokens)
        if blocks >= program.units:
            raise UsageError(
                f"generating with {program.name}", found=f"{end} tokens, which fill {blocks} blocks",
                required=f"at most {program.units - 1} blocks",
                hint="generate fewer tokens, or load the core with more memory",
            )  # fmt: skip
        seat = steps.seat(0, range(1, blocks + 1), sampling or Sampling(), len(ids))  # block 0 is padding
        chunks, (decode, *_) = steps.sizes["prefill"], steps.sizes["decode"]
        token = 0
        for start in range(0, len(ids), chunks[-1]):
            chunk = ids[start : start + chunks[-1]]
            token = steps.prefill(min(size for size in chunks if size >= len(chunk)), seat, chunk, start)
        for position in range(len(ids), end):
            if token in text.eos:
                return
            yield token
            if position + 1 < end:
                (token,) = steps.decode(decode, [seat], [token], [position])
