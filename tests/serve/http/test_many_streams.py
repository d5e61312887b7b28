"""The real server on a core of eight rows and a long context: streams that share rounds, and the long plan of R31."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import Any

import openai
import pytest
from real_server import PATIENCE, Running, complete, gauge, running_server

from heliograph.models.serving import Serving
from tiny_models import capture_small, random_model, write_hf

WIDE = Serving(context=5376, decode_rows=(1, 4, 8), prefill_tokens=(64, 256), masks=4)
STREAMS, TOKENS = 8, 600
COUNTERS = ("rounds_total", "round_emitted_tokens_total", "prefill_emitted_tokens_total", "prefill_tokens_total")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("wide")
    write_hf(folder / "model", random_model("llama", max_position_embeddings=8192))
    with running_server(capture_small(folder / "model", folder / "cores", WIDE)) as server:
        yield server


def prompt(count: int, seed: int = 0) -> list[int]:
    return [3 + (seed + 7 * place) % 256 for place in range(count)]


@dataclass
class Stream:
    """When its pieces came, and what they were."""

    first: float
    last: float
    text: str
    tokens: int
    end: str


def stream(server: Running, together: Barrier, **request: Any) -> Stream:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE)
    together.wait(PATIENCE)
    seen = Stream(0.0, 0.0, "", 0, "")
    for chunk in client.completions.create(
        model="tiny", stream=True, stream_options={"include_usage": True}, extra_body={"ignore_eos": True}, **request
    ):
        if chunk.usage:
            seen.tokens = chunk.usage.completion_tokens
        elif chunk.choices[0].text:
            seen.last = time.monotonic()
            seen.first = seen.first or seen.last
            seen.text += chunk.choices[0].text
        if chunk.choices:
            seen.end = chunk.choices[0].finish_reason or ""
    return seen


def test_eight_streams_share_rounds_begin_before_any_ends_and_are_their_single_runs(running: Running) -> None:
    requests: list[dict[str, Any]] = [
        {"prompt": prompt(5 + 9 * number, number), "seed": number, "temperature": 1.0, "max_tokens": TOKENS}
        for number in range(STREAMS)
    ]
    together = Barrier(STREAMS)
    with ThreadPoolExecutor(STREAMS) as pool:
        streams = [each.result() for each in [pool.submit(stream, running, together, **each) for each in requests]]
    assert max(each.first for each in streams) < min(each.last for each in streams)
    assert gauge(running, 'round_rows_bucket{le="8.0"}') > gauge(running, 'round_rows_bucket{le="7.0"}')
    assert len({each.text for each in streams}) == STREAMS
    for seen, request in zip(streams, requests, strict=True):
        alone = complete(running, **request)
        (choice,) = alone["choices"]
        assert (seen.text, seen.tokens, seen.end) == (choice["text"], TOKENS, choice["finish_reason"])
        assert alone["usage"]["completion_tokens"] == TOKENS


def test_long_prompts_then_four_answers_of_1024_tokens_account_for_4_times_1023(running: Running) -> None:
    """R31. Each long prompt twice: the second request is as good as the first."""
    for count in (831, 1777, 2896, 4110):
        before = [gauge(running, name) for name in COUNTERS]
        request = {"prompt": prompt(count), "max_tokens": 16, "temperature": 0}
        first, second = (complete(running, **request) for _ in range(2))
        assert first["choices"] == second["choices"]
        assert first["usage"] == second["usage"]
        assert (first["usage"]["prompt_tokens"], first["usage"]["completion_tokens"]) == (count, 16)
        now = [gauge(running, name) for name in COUNTERS]
        assert [later - earlier for later, earlier in zip(now, before, strict=True)] == [30, 30, 2, 2 * count]
    before = [gauge(running, name) for name in COUNTERS]
    with ThreadPoolExecutor(4) as pool:
        asked = [
            pool.submit(complete, running, prompt=prompt(100, number), max_tokens=1024, temperature=1.0, seed=number)
            for number in range(4)
        ]
        answers = [each.result() for each in asked]
    assert {(each["usage"]["completion_tokens"], each["choices"][0]["finish_reason"]) for each in answers} == {
        (1024, "length")
    }
    rounds, emitted, first_tokens, stored = (
        gauge(running, name) - was for name, was in zip(COUNTERS, before, strict=True)
    )
    assert (emitted, first_tokens, stored) == (4 * 1023, 4, 400)
    assert 1023 <= rounds < 4 * 1023
