"""When the figures of a serving benchmark count: with a peer, little spread, a quiet machine and equal work."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SPREADS = (0.0, 0.01, -0.01, 0.02, -0.02, 0.0, 0.01)  # of seven samples, as parts of their median
Verdict = tuple[bool, Mapping[str, Any]]


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture
def start(capsys: pytest.CaptureFixture[str]) -> Callable[..., Verdict]:
    """The verdict of ``host_start`` on planted samples, and its last line."""
    from _servers import Side
    from host_start import PROMPT_TOKENS, Sample, report

    def judged(
        ours: float = 0.4, peer: float | None = 0.4, wide: float = 1.0, busy: float = 0.0, tokens: int = PROMPT_TOKENS
    ) -> Verdict:
        def samples(seconds: float, prompt: int) -> list[Sample]:
            phases = ({"listening": 0.1, "ready": 0.2, "first token": seconds * (1 + wide * part)} for part in SPREADS)
            return [Sample(each, prompt, 1 << 20, "a") for each in phases]

        taken = {"ours": samples(ours, PROMPT_TOKENS)} | ({} if peer is None else {"peer": samples(peer, tokens)})
        sides = [Side(name, ("program",), Path("served")) for name in taken]
        done = report(taken, sides, busy)
        return done, json.loads(capsys.readouterr().out.splitlines()[-1])

    return judged


def test_a_quick_start_beside_its_peer_counts(start: Callable[..., Verdict]) -> None:
    done, said = start()
    assert (done, said["ok"], said["valid"], said["ratio"]) == (True, True, True, 1.0)


@pytest.mark.parametrize(
    "problem", [{"peer": None}, {"wide": 20.0}, {"busy": 0.5}, {"tokens": 40}], ids=lambda problem: next(iter(problem))
)
def test_a_run_that_compares_nothing_is_not_valid(start: Callable[..., Verdict], problem: dict[str, Any]) -> None:
    done, said = start(**problem)
    assert (done, said["valid"]) == (False, False)
    assert said["problems"]


@pytest.mark.parametrize("slow", [{"ours": 0.46, "peer": 0.46}, {"ours": 0.4, "peer": 0.3}], ids=["bar", "ratio"])
def test_a_slow_start_is_valid_and_fails(start: Callable[..., Verdict], slow: dict[str, float]) -> None:
    done, said = start(**slow)
    assert (done, said["ok"], said["valid"]) == (False, False, True)


@pytest.mark.parametrize("peer", [True, False])
def test_tokens_a_second_count_beside_a_peer_only(capsys: pytest.CaptureFixture[str], peer: bool) -> None:
    from _servers import Side
    from host_decode import FIGURES, report

    names = ("ours", "peer") if peer else ("ours",)
    taken = {name: [dict.fromkeys(FIGURES, 30.0 * (1 + part)) for part in SPREADS] for name in names}
    done = report(taken, [Side(name, ("program",), Path("served")) for name in names], 0.0)
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (done, said["valid"]) == (peer, peer)
