"""Tokens per second at 1, 2, 4, 8 and 16 streams, and prompt tokens per second, ours beside llama-server.

    python benchmarks/host_decode.py [CORE] [--runs 5]        (first: make peer .venv-serve/.done)

Streams start together, each with 128 prompt tokens of its own and 64 generated ones, greedy, end of text ignored. What
counts is the steady part: tokens that came while all streams were generating. `whole` is everything from the first
request to the last token, prompts included. The prompt rate is of one request of 512 tokens, up to its first token.
Both get the same token ids; a sample is a fresh server; sides alternate A B B A. No bar: reported. The last line is
JSON; without the peer it is not valid and the exit code is 1.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from _client import Seen, ask
from _judge import busy_share, invalid, print_result, spread
from _machine import ROOT
from _servers import (
    OURS,
    PEER,
    Side,
    arguments_of,
    both,
    conditions,
    core_folder,
    limited,
    running,
    taken,
    warm,
)

from heliograph.core.policy import Policy
from heliograph.core.verify import verify
from heliograph.runtime.text import Text

BATCHES = (1, 2, 4, 8, 16)
PROMPT, GENERATED, LONG = 128, 64, 512  # tokens
PEER_OPTIONS = ("-c", "16384", "-np", str(max(BATCHES)))
FIGURES = (*(f"batch {count}" for count in BATCHES), "prompt", *(f"whole {count}" for count in BATCHES))

Sample = Mapping[str, float]  # tokens per second by figure


def prompts(core: Path, count: int, length: int) -> list[list[int]]:
    """Different pieces of the longest text at hand, as tokens."""
    with verify(core, Policy.local()) as verified:
        tokens = Text.of(verified).encode((ROOT / "docs" / "core-format.md").read_text())
    if len(tokens) < count * length:
        sys.exit(f"{len(tokens)} tokens are too few for {count} prompts of {length}")
    return [tokens[at * length : (at + 1) * length] for at in range(count)]


def sample(side: Side, short: Sequence[Sequence[int]], long: Sequence[int]) -> Sample:
    warm(side.serves)
    figures: dict[str, float] = {}
    with running(side) as server:
        for count in BATCHES:  # once to be ready for each size: executables of ours, buffers of the peer
            together(server.port, [{"prompt": prompt, **limited(side, 8)} for prompt in short[:count]], PROMPT, 8)
        for count in BATCHES:
            seen = together(
                server.port,
                [{"prompt": prompt, **limited(side, GENERATED)} for prompt in short[:count]],
                PROMPT,
                GENERATED,
            )
            figures[f"batch {count}"] = steady(seen)
            span = max(one.pieces[-1] for one in seen) - min(one.sent_ns for one in seen)
            figures[f"whole {count}"] = count * GENERATED / span * 1e9
        (seen,) = together(server.port, [{"prompt": long, **limited(side, 1)}], LONG, 1)
        figures["prompt"] = LONG / (seen.pieces[0] - seen.sent_ns) * 1e9
    return figures


def together(port: int, requests: Sequence[Mapping[str, object]], prompt: int, generated: int) -> list[Seen]:
    """All at once, each in a thread of its own. Every stream must have had exactly the tokens asked for."""
    start = Barrier(len(requests))

    def one(request: Mapping[str, object]) -> Seen:
        start.wait(timeout=30)
        return ask(port, request)

    with ThreadPoolExecutor(len(requests)) as threads:
        seen = list(threads.map(one, requests))
    for stream in seen:
        counts = stream.usage["prompt_tokens"], stream.usage["completion_tokens"]
        if counts != (prompt, generated):
            sys.exit(f"a stream of {counts} tokens instead of {(prompt, generated)}")
    return seen


def steady(seen: Sequence[Seen]) -> float:
    """Pieces per second while every stream was generating; a piece is a token but for a few cut characters."""
    begin, end = max(stream.pieces[0] for stream in seen), min(stream.pieces[-1] for stream in seen)
    inside = sum(begin < piece <= end for stream in seen for piece in stream.pieces)
    return inside / (end - begin) * 1e9 if end > begin else 0.0


def report(samples: Mapping[str, Sequence[Sample]], sides: Sequence[Side], busy: float) -> bool:
    medians = {
        name: {f: statistics.median(one[f] for one in taken) for f in FIGURES} for name, taken in samples.items()
    }
    spreads = {name: {f: spread([one[f] for one in taken]) for f in FIGURES} for name, taken in samples.items()}
    ratios = {f: medians[OURS][f] / medians[PEER][f] for f in FIGURES} if PEER in medians else {}
    print(f"{'tokens per second':<20}" + "".join(f"{name:>10}" for name in medians) + f"{'ratio':>10}")
    for f in FIGURES:
        ratio = f"{ratios[f]:10.2f}" if f in ratios else ""
        print(f"{f:<20}" + "".join(f"{medians[name][f]:10.1f}" for name in medians) + ratio)
    problems = [
        *([] if ratios else ["no peer: run make peer"]),
        *invalid({f"{name}, {f}": value for name, of in spreads.items() for f, value in of.items()}, busy),
    ]
    rounded = {name: {f: round(value, 2) for f, value in of.items()} for name, of in medians.items()}
    return print_result(
        benchmark="host_decode",
        metric="tokens per second, by streams at a time",
        ours=rounded[OURS],
        peer=rounded.get(PEER),
        ratio={f: round(value, 3) for f, value in ratios.items()} or None,
        bar=None,
        ok=True,
        problems=problems,
        measures={},
        samples={name: [{f: round(one[f], 2) for f in FIGURES} for one in taken] for name, taken in samples.items()},
        spread={name: {f: round(value, 4) for f, value in of.items()} for name, of in spreads.items()},
        tokens={"prompt": PROMPT, "generated": GENERATED, "long prompt": LONG},
        **conditions(sides, busy),
    )


def main() -> int:
    arguments = arguments_of(__doc__, 5)
    core = core_folder(arguments.core)
    sides = both(core, arguments.program, *PEER_OPTIONS)
    short, (long,) = prompts(core, max(BATCHES), PROMPT), prompts(core, 1, LONG)
    busy = busy_share()
    samples = taken(sides, max(4, arguments.runs), lambda side: sample(side, short, long), lambda one: one)
    return 0 if report(samples, sides, busy) else 1


if __name__ == "__main__":
    sys.exit(main())
