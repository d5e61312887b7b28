"""When the figures of a serving benchmark count: with a peer, little spread, a quiet machine and equal work."""

from __future__ import annotations

import json
from argparse import Namespace
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


Judged = Callable[[float, float], bool]  # on samples that are so many times as far apart, on a machine so busy


@pytest.fixture(params=["load", "ops", "gpu_costs"])
def unbarred(request: pytest.FixtureRequest, tmp_path: Path) -> Judged:
    """The report of a benchmark without a bar, on planted samples."""
    (tmp_path / "core.json").write_text(json.dumps({"weights": {"size": 1}, "graphs": [{"nodes": 1}]}))

    def load(wide: float, busy: float) -> bool:
        import load

        runs = [{"verify": 1, "process start to ready": int(1e9 * (1 + wide * part))} for part in SPREADS]
        arguments = Namespace(cache="warm", ready="first", runs=len(runs))
        return load.report(tmp_path, dict.fromkeys(load.SIDES, runs), arguments, busy)

    def ops(wide: float, busy: float) -> bool:
        import ops

        return ops.report([{"op": "add", "spread": 0.01 * wide}], {"workers": 1}, busy)

    def gpu_costs(wide: float, busy: float) -> bool:
        import gpu_costs

        said = {"model": "m", "graphs": 1, "nodes": 1, "pointers": 1, "range mode": {}, "ambiguous": {}}
        seconds = (
            {"first capture": 1.0, "second capture": 2 + 10 * wide * part, "exact census": 1.0} for part in SPREADS
        )
        return gpu_costs.report({"m": [{**said, "seconds": each} for each in seconds]}, busy)

    return {"load": load, "ops": ops, "gpu_costs": gpu_costs}[request.param]


@pytest.mark.parametrize(
    ("wide", "busy", "counts"), [(1.0, 0.0, True), (20.0, 0.0, False), (1.0, 0.5, False)], ids=["quiet", "wide", "busy"]
)
def test_figures_without_a_bar_count_on_a_quiet_machine_only(
    unbarred: Judged, capsys: pytest.CaptureFixture[str], wide: float, busy: float, counts: bool
) -> None:
    assert unbarred(wide, busy) == counts
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (said["valid"], bool(said["problems"])) == (counts, not counts)
