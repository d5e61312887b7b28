"""/metrics: the server's numbers in the format of Prometheus. Imported when it is asked for, for it takes a while."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from heliograph.serve.front.metrics import Histogram, Metrics
from heliograph.serve.front.rounds import Rounds

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def expose(metrics: Metrics, rounds: Rounds) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Now(metrics, rounds))
    return generate_latest(registry)


class _Now(Collector):
    def __init__(self, metrics: Metrics, rounds: Rounds) -> None:
        self._metrics, self._rounds = metrics, rounds

    def collect(self) -> Iterator[Metric]:
        """Called by the registry."""
        metrics, rounds = self._metrics, self._rounds
        yield from _counter("rounds", "Decode launches that were read back", rounds.rounds)
        yield from _counter("round_emitted_tokens", "Tokens that rounds emitted", rounds.emitted)
        yield from _counter("round_seconds", "Time of rounds", rounds.nanoseconds / 1e9)
        yield from _gauge("tokens_per_round", "Emitted tokens a round", rounds.tokens_per_round)
        yield from _gauge("milliseconds_per_round", "Time a round", rounds.milliseconds_per_round)
        yield from _histogram("round_rows", "Rows of a round, padding left out", metrics.round_rows)
        yield from _counter("prefills", "Prefill launches that were read back", rounds.prefills)
        yield from _counter("prefill_tokens", "Prompt tokens that prefill launches took", rounds.prefill_tokens)
        yield from _counter("prefill_emitted_tokens", "First tokens, which prefill gives", rounds.first_tokens)
        yield from _counter("prefill_seconds", "Time of prefill launches", rounds.prefill_nanoseconds / 1e9)
        yield from _counter("prompt_tokens", "Tokens of prompts, each prompt once", metrics.prompt_tokens)
        yield from _counter("generated_tokens", "Tokens emitted, first ones included", metrics.generated_tokens)
        yield from _histogram(
            "time_to_first_token_seconds", "From submission to a request's first token", metrics.first_token
        )
        yield from _histogram("inter_token_seconds", "Between tokens of one request", metrics.inter_token)
        yield from _histogram("request_seconds", "From request to the end of its answer", metrics.request)
        yield from _gauge("rows_running", "Rows that hold a slot", metrics.load.running)
        yield from _gauge("rows_waiting", "Rows that wait for a slot", metrics.load.waiting)
        yield from _gauge("free_blocks", "KV blocks that are free", metrics.load.free_blocks)
        yield from _gauge("prepared_buckets", "Buckets that are built and tested", metrics.prepared)
        yield from _counter("worker_restarts", "Workers that were started again", metrics.restarts)
        requests = CounterMetricFamily("heliograph_requests", "Requests answered", labels=("endpoint", "status"))
        for (endpoint, status), count in metrics.requests.items():
            requests.add_metric((endpoint, str(status)), count)
        yield requests
        phases = GaugeMetricFamily("heliograph_startup_phase_seconds", "Phases of the last start", labels=("phase",))
        for name, nanoseconds in metrics.phases.items():
            phases.add_metric((name,), nanoseconds / 1e9)
        yield phases


def _counter(name: str, text: str, value: float) -> Iterator[Metric]:
    yield CounterMetricFamily(f"heliograph_{name}", text, value=value)


def _gauge(name: str, text: str, value: float) -> Iterator[Metric]:
    yield GaugeMetricFamily(f"heliograph_{name}", text, value=value)


def _histogram(name: str, text: str, histogram: Histogram) -> Iterator[Metric]:
    bounds = [*(str(float(bound)) for bound in histogram.bounds), "+Inf"]
    buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
    yield HistogramMetricFamily(f"heliograph_{name}", text, buckets=buckets, sum_value=histogram.sum)
