"""What /metrics shows is what happened."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from scripted_worker import Line, Script
from served import Served, ids, serving
from wire import ask, connect, post

CHAT = "/v1/chat/completions"


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]} | fields


def shown(served: Served) -> Mapping[tuple[str, ...], float]:
    """Samples by name and label values."""
    text = ask(served.url, "/metrics").body.decode()
    return {
        (sample.name.removeprefix("heliograph_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_round_counters_add_up_to_what_clients_got() -> None:
    with serving(Script(line=lambda submit, place: Line(ids("Hello")))) as served:
        usages = [ask(served.url, CHAT, chat(n=n)).json["usage"]["completion_tokens"] for n in (1, 2, 3)]
        now = shown(served)
    assert usages == [5, 10, 15]
    assert now["round_emitted_tokens_total",] + now["prefill_emitted_tokens_total",] == sum(usages)
    assert now["generated_tokens_total",] == sum(usages)
    assert now["tokens_per_round",] * now["rounds_total",] == now["round_emitted_tokens_total",]
    assert now["rounds_total",] == now["round_rows_count",] == sum(x.entry == "decode" for x in served.told.launches)
    assert now["milliseconds_per_round",] == 1
    assert now["inter_token_seconds_count",] + now["time_to_first_token_seconds_count",] <= sum(usages)
    assert now["time_to_first_token_seconds_count",] == now["request_seconds_count",] == 3


def test_rounds_of_eight_rows_are_seen() -> None:
    with serving(Script(line=lambda submit, place: Line(ids("x" * 50)), interval=0.002)) as served:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: ask(served.url, CHAT, chat(stream=True)), range(8)))
        now = shown(served)
    assert now["round_rows_bucket", "8.0"] - now["round_rows_bucket", "7.0"] > 0


def test_the_prompt_of_many_choices_counts_once() -> None:
    """E26"""
    with serving(Script(line=lambda submit, place: Line(ids("a")))) as served:
        usage = ask(served.url, CHAT, chat(n=4)).json["usage"]
        assert shown(served)["prompt_tokens_total",] == usage["prompt_tokens"]


def test_requests_are_counted_by_endpoint_and_status_and_unknown_paths_together() -> None:
    with serving(Script(line=lambda submit, place: Line(ids("a")))) as served:
        ask(served.url, CHAT, chat())
        ask(served.url, CHAT, chat(n=0))
        for number in range(50):
            ask(served.url, f"/made/up/{number}")
        now = shown(served)
    assert now["requests_total", CHAT, "200"] == now["requests_total", CHAT, "400"] == 1
    assert now["requests_total", "other", "404"] == 50
    assert not any("made" in label for key in now for label in key)


def endless() -> Script:
    return Script(line=lambda submit, place: Line(ids("x" * 400)), interval=0.005)


def test_gauges_are_those_of_the_last_launch() -> None:
    with serving(endless()) as served, connect(served.url) as connection:
        assert shown(served)["free_blocks",] == 64
        connection.sendall(post(CHAT, chat()))
        served.eventually(lambda: shown(served)["rows_running",] == 1)
        now = shown(served)
    assert (now["free_blocks",], now["prepared_buckets",], now["rows_running",], now["rows_waiting",]) == (60, 4, 1, 0)


@pytest.mark.parametrize("how", ["the client leaves", "the worker dies"])
def test_gauges_of_a_server_that_does_nothing_say_so(how: str) -> None:
    """Also when no launch came after the last row ended."""
    with serving(endless()) as served:
        with connect(served.url) as connection:
            connection.sendall(post(CHAT, chat()))
            served.eventually(lambda: shown(served)["rows_running",] == 1)
            if how == "the worker dies":
                served.kill_worker()
                assert connection.recv(1000).startswith(b"HTTP/1.1 503")
        served.eventually(lambda: not served.told.under_way)
        served.eventually(lambda: shown(served)["rows_running",] == 0)
        assert shown(served)["rows_waiting",] == 0
