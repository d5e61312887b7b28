"""From process start to the first token that a client sees, ours beside llama-server, by phase.

    python benchmarks/host_start.py [CORE] [--runs 9]        (first: make peer .venv-serve/.done)

The parent starts the clock before exec. One client asks as soon as somebody listens; ours holds that request until it
is ready, the peer answers 503, and the client asks again a millisecond later. Same file, same chat prompt of 39 tokens,
2 threads, greedy, end of text ignored, page cache warm; sides alternate A B B A. CORE is by default the newest of
`make demo`. The last line is JSON; without the peer it is not valid and the exit code is 1.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from _client import Seen, ask
from _judge import busy_share, invalid, print_result, spread
from _servers import (
    OURS,
    PEER,
    QUESTION,
    TOKENS,
    Running,
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

BAR_SECONDS, BAR_RATIO = 0.45, 1.3
PROMPT_TOKENS = 39
PEER_OPTIONS = ("-c", "2048", "-np", "1")
PHASES = ("listening", "ready", "first token")


@dataclass(frozen=True, slots=True)
class Sample:
    """Seconds since before exec, and what the start took of memory."""

    seconds: Mapping[str, float]
    prompt_tokens: int
    peak_bytes: int
    text: str


def sample(side: Side) -> Sample:
    warm(side.serves)
    with running(side) as server:
        seen = ask(server.port, {"messages": QUESTION, **limited(side, TOKENS)})
        peak = server.peak_bytes()
    marks = (seen.listening_ns, ready(server, seen), seen.pieces[0])
    seconds = {phase: (mark - server.started_ns) / 1e9 for phase, mark in zip(PHASES, marks, strict=True)}
    return Sample(seconds, seen.usage["prompt_tokens"], peak, seen.text)


def ready(server: Running, seen: Seen) -> int:
    """When it would answer: ours says so, the peer stops saying 503."""
    if server.side.name == PEER:
        return seen.ready_ns or seen.listening_ns
    return next(when for when, event in server.events if event["event"] == "ready")


def report(samples: Mapping[str, Sequence[Sample]], sides: Sequence[Side], busy: float) -> bool:
    firsts = {name: [one.seconds["first token"] for one in taken] for name, taken in samples.items()}
    medians = {
        name: {phase: statistics.median(one.seconds[phase] for one in taken) for phase in PHASES}
        for name, taken in samples.items()
    }
    print(f"{'seconds since before exec':<28}" + "".join(f"{name:>10}" for name in samples))
    for phase in PHASES:
        print(f"{phase:<28}" + "".join(f"{medians[name][phase]:10.3f}" for name in samples))
    ours, peer = medians[OURS]["first token"], medians.get(PEER, {}).get("first token")
    ratio = None if peer is None else ours / peer
    spreads = {name: spread(values) for name, values in firsts.items()}
    prompts = {name: {one.prompt_tokens for one in taken} for name, taken in samples.items()}
    problems = [
        *(["no peer: run make peer"] if peer is None else []),
        *([f"prompt tokens {prompts}"] if any(found != {PROMPT_TOKENS} for found in prompts.values()) else []),
        *invalid(spreads, busy),
    ]
    ok = ours <= BAR_SECONDS and ratio is not None and ratio <= BAR_RATIO
    return print_result(
        benchmark="host_start",
        metric="seconds from process start to the first content token",
        ours=round(ours, 4),
        peer=peer and round(peer, 4),
        ratio=ratio and round(ratio, 4),
        bar=BAR_SECONDS,
        ok=ok,
        problems=problems,
        measures={
            "start_seconds": {"value": round(ours, 4), "bar": BAR_SECONDS, "ok": ours <= BAR_SECONDS},
            "ratio": {"value": ratio and round(ratio, 4), "bar": BAR_RATIO, "ok": bool(ratio and ratio <= BAR_RATIO)},
        },
        median_seconds={name: {phase: round(value, 4) for phase, value in of.items()} for name, of in medians.items()},
        samples={
            name: [{p: round(s, 4) for p, s in one.seconds.items()} for one in taken] for name, taken in samples.items()
        },
        spread={name: round(value, 4) for name, value in spreads.items()},
        peak_bytes={name: int(statistics.median(one.peak_bytes for one in taken)) for name, taken in samples.items()},
        text={name: taken[0].text for name, taken in samples.items()},
        prompt_tokens=PROMPT_TOKENS,
        **conditions(sides, busy),
    )


def main() -> int:
    arguments = arguments_of(__doc__, 9)
    sides = both(core_folder(arguments.core), arguments.program, *PEER_OPTIONS)
    busy = busy_share()
    for side in sides:
        sample(side)  # what a first run ever leaves behind is of neither side
    samples = taken(sides, max(7, arguments.runs), sample, lambda one: one.seconds)
    return 0 if report(samples, sides, busy) else 1


if __name__ == "__main__":
    sys.exit(main())
