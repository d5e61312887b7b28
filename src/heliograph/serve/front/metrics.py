"""What /metrics shows. Times are seconds, as Prometheus wants them; counters of launches are those of ``rounds``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from heliograph.serve.frames import Launched
from heliograph.serve.front.rounds import Rounds

SHORT = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5,
    0.75, 1, 2, 5, 10, 30, 60, 120,
)  # fmt: skip
ROWS = (*range(1, 17), 24, 32, 48, 64, 96, 128)  # so that rounds of exactly 8 rows are le="8" less le="7"


class Metrics(Collector):
    """One server's. Gauges are plain attributes, read when they are asked for."""

    def __init__(self, rounds: Rounds) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._rounds = rounds
        self.running = self.waiting = self.free_blocks = self.prepared = self.restarts = 0
        self.phases: dict[str, int] = {}  # nanoseconds
        counter, histogram = partial(Counter, registry=self.registry), partial(Histogram, registry=self.registry)
        self.requests = counter("heliograph_requests", "Requests answered", ("endpoint", "status"))
        self.prompt_tokens = counter("heliograph_prompt_tokens", "Tokens of prompts, each prompt once")
        self.generated_tokens = counter("heliograph_generated_tokens", "Tokens emitted, first ones included")
        self.first_token = histogram(
            "heliograph_time_to_first_token_seconds",
            "From submission to a request's first token",
            buckets=SHORT,
        )
        self.inter_token = histogram("heliograph_inter_token_seconds", "Between tokens of one request", buckets=SHORT)
        self.request = histogram("heliograph_request_seconds", "From request to the end of its answer")
        self.round_rows = histogram("heliograph_round_rows", "Rows of a round, padding left out", buckets=ROWS)

    def timer(self, clock: Callable[[], float]) -> Callable[[int], None]:
        """What times the tokens of one request that is submitted now."""
        last = clock()
        first = True

        def timed(tokens: int) -> None:
            nonlocal last, first
            now = clock()
            (self.first_token if first else self.inter_token).observe(now - last)
            self.generated_tokens.inc(tokens)
            last, first = now, False

        return timed

    def launched(self, launched: Launched) -> None:
        if launched.entry == "decode":
            self.round_rows.observe(launched.real)
        self.running, self.waiting = launched.running, launched.waiting
        self.free_blocks, self.prepared = launched.free_blocks, launched.prepared

    def collect(self) -> Iterator[Metric]:
        """Called by the registry."""
        rounds = self._rounds
        for name, text, value in (
            ("rounds", "Decode launches that were read back", rounds.rounds),
            ("round_emitted_tokens", "Tokens that rounds emitted", rounds.emitted),
            ("round_seconds", "Time of rounds", rounds.nanoseconds / 1e9),
            ("prefills", "Prefill launches that were read back", rounds.prefills),
            ("prefill_tokens", "Prompt tokens that prefill launches took", rounds.prefill_tokens),
            ("prefill_emitted_tokens", "First tokens, which prefill gives", rounds.first_tokens),
            ("prefill_seconds", "Time of prefill launches", rounds.prefill_nanoseconds / 1e9),
            ("worker_restarts", "Workers that were started again", self.restarts),
        ):
            yield CounterMetricFamily(f"heliograph_{name}", text, value=value)
        for name, text, value in (
            ("rows_running", "Rows that hold a slot", self.running),
            ("rows_waiting", "Rows that wait for a slot", self.waiting),
            ("free_blocks", "KV blocks that are free", self.free_blocks),
            ("prepared_buckets", "Buckets that are built and tested", self.prepared),
            ("tokens_per_round", "Emitted tokens a round", rounds.tokens_per_round),
            ("milliseconds_per_round", "Time a round", rounds.milliseconds_per_round),
        ):
            yield GaugeMetricFamily(f"heliograph_{name}", text, value=value)
        family = GaugeMetricFamily("heliograph_startup_phase_seconds", "Phases of the last start", labels=("phase",))
        for name, nanoseconds in self.phases.items():
            family.add_metric((name,), nanoseconds / 1e9)
        yield family

    def text(self) -> bytes:
        return generate_latest(self.registry)
