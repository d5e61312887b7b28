"""What 2,000 open connections that say nothing cost another client: its time to the first token, without and with them.

    python benchmarks/host_idle.py [CORE] [--runs 9]        (first: make .venv-serve/.done)

One server, warmed up; one client that asks a chat question of 39 tokens on a new connection. Sides alternate A B B A;
the idle connections are opened before a sample and closed after it. The bar is a ratio of 2. The last line is JSON.
"""

from __future__ import annotations

import resource
import socket
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path

from _client import ask
from _judge import busy_share, invalid, print_result, spread
from _servers import QUESTION, TOKENS, Running, arguments_of, conditions, core_folder, limited, ours, running, warm

BAR = 2.0
IDLE = 2000
SIDES = (0, IDLE)


def sample(server: Running, idle: int) -> tuple[float, int]:
    """Seconds from sending to the first token, and the front's resident bytes meanwhile."""
    request = {"messages": QUESTION, **limited(server.side, TOKENS)}
    with ExitStack() as held:
        for _ in range(idle):
            held.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
        ask(server.port, request)  # once answered, all earlier connections are accepted
        seen = ask(server.port, request)
        pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    return (seen.pieces[0] - seen.sent_ns) / 1e9, pages * resource.getpagesize()


def main() -> int:
    arguments = arguments_of(__doc__, 9)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * IDLE:
        sys.exit(f"this user may open {hard} files; {2 * IDLE} are needed (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * IDLE, hard))
    core = core_folder(arguments.core)
    side = ours(core, arguments.program)
    warm(core)
    busy = busy_share()
    samples: dict[int, list[tuple[float, int]]] = {idle: [] for idle in SIDES}
    with running(side) as server:
        sample(server, 0)
        for number in range(max(7, arguments.runs)):
            for idle in SIDES if number % 2 == 0 else SIDES[::-1]:
                samples[idle].append(sample(server, idle))
    seconds = {idle: [first for first, _ in taken] for idle, taken in samples.items()}
    medians = {idle: statistics.median(values) for idle, values in seconds.items()}
    spreads = {idle: spread(values) for idle, values in seconds.items()}
    ratio = medians[IDLE] / medians[0]
    before, after = samples[0][0][1], samples[IDLE][0][1]  # the first of each: memory is kept for the next ones
    for idle, value in medians.items():
        print(f"{idle:5} idle connections: first token after {value * 1e3:.1f} ms, spread {spreads[idle]:.1%}")
    problems = invalid({f"{idle} idle": value for idle, value in spreads.items()}, busy)
    done = print_result(
        benchmark="host_idle",
        metric=f"time to the first token beside {IDLE} idle connections, over that without",
        ours=round(ratio, 3),
        peer=None,
        ratio=round(ratio / BAR, 3),
        bar=BAR,
        ok=ratio <= BAR,
        problems=problems,
        measures={"seconds": {str(idle): round(value, 4) for idle, value in medians.items()}},
        samples={str(idle): [round(value, 4) for value in values] for idle, values in seconds.items()},
        spread={str(idle): round(value, 4) for idle, value in spreads.items()},
        bytes_a_connection=round((after - before) / IDLE),
        **conditions([side], busy),
    )
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
