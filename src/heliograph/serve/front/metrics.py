"""What the server counts beside its rounds. Plain numbers: ``exposition`` writes them down when somebody asks."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence

from heliograph.serve.frames import Launched, Load

SHORT = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5,
    0.75, 1, 2, 5, 10, 30, 60, 120,
)  # fmt: skip
LONG = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
ROWS = (*range(1, 17), 24, 32, 48, 64, 96, 128)  # so that rounds of exactly 8 rows are le="8" less le="7"


class Histogram:
    """Counts by bucket: ``counts[i]`` is of values above bound i - 1 and up to bound i; the last has no bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Timer:
    """Times the tokens of one request that is submitted now."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._metrics, self._clock = metrics, clock
        self._last = clock()
        self.first: float | None = None  # seconds to the first token

    def __call__(self, tokens: int) -> None:
        """It has so many more."""
        now = self._clock()
        passed, self._last = now - self._last, now
        self._metrics.generated_tokens += tokens
        if self.first is None:
            self.first = passed
            self._metrics.first_token.observe(passed)
        else:
            self._metrics.inter_token.observe(passed)


class Metrics:
    """One server's. Times are seconds unless they say otherwise."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()  # by endpoint and status
        self.prompt_tokens = 0  # each prompt once, however many answers it has
        self.generated_tokens = 0  # first ones included
        self.first_token = Histogram(SHORT)  # from submission
        self.inter_token = Histogram(SHORT)  # between what launches gave one request
        self.request = Histogram(LONG)  # from request to the end of its answer
        self.round_rows = Histogram(ROWS)  # padding left out
        self.load = Load(0, 0, 0)  # as the worker said it last
        self.prepared = 0
        self.restarts = 0
        self.phases: dict[str, int] = {}  # nanoseconds of the last start

    def launched(self, launched: Launched) -> None:
        if launched.entry == "decode":
            self.round_rows.observe(launched.real)
        self.load, self.prepared = launched.load, launched.prepared
