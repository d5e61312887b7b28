"""Who replays: another process after the preparing one has exited, the preparing process after it became the serving
program, and a native replayer inside the preparing process. Weights in one file and in several."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu.runs import HERE, check_replays, replayed, script

pytestmark = pytest.mark.gpu
REPLAYS = 5
SLICES = {64 << 20: 2, 64 << 30: 1}


@pytest.fixture(scope="module", params=SLICES, ids=["cap 64 MiB", "cap 64 GiB"])
def handed_over(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the preparing process said, and what it said once it was the serving program."""
    cores: Path = tmp_path_factory.mktemp("cores")
    wanted = {
        "factory": f"{HERE / 'factories.py'}:wide",
        "cores": str(cores),
        "exact": False,
        "retain": "executable",
        "replays": REPLAYS,
        "options": {"cap": request.param},
    }
    told = script("hand_over.py", given=wanted)
    said = json.loads((cores / "said").read_text())
    check_replays(said)
    slices = json.loads((Path(said["core"]) / "core.json").read_text())["weights"]["slices"]
    assert len(slices) == SLICES[request.param]
    return {"said": said, "told": told}


def test_the_preparing_process_becomes_the_serving_program(handed_over: dict[str, Any]) -> None:
    said, told = handed_over["said"], handed_over["told"]
    assert told["process"] == said["process"]
    assert told["digests"] == said["digests"]
    assert len(told["digests"]) == REPLAYS * len(said["nodes"])
    assert not told["torch"]
    assert not told["cupti"]


def test_another_process_replays_after_it_has_exited(handed_over: dict[str, Any]) -> None:
    said = handed_over["said"]
    told = replayed(said)
    assert told["process"] != said["process"]
    assert told["digests"] == said["digests"]


def test_a_native_replayer_takes_the_live_executable_and_drains_itself(tmp_path: Path) -> None:
    told = script("native_replayer.py", "drains", str(tmp_path))
    assert told["numbers"] == [True, True]
    assert told["same"] == [True, True], "outputs and state, bit for bit as by launches through the graph"
    assert told["launches of ours"] == 0
    assert "native replayers that did not drain" in told["reset while it launches"]
    assert "a lease that was drained" in told["used after the drain"]
    assert "native replayers that did not drain" in told["forgotten"]
    assert told["still recorded"]
    assert (Path(told["core"]) / "core.json").exists(), "the capture goes on"


def test_a_replayer_that_never_drains_stops_the_capture_and_leaves_no_core(tmp_path: Path) -> None:
    told = script("native_replayer.py", "forgets", str(tmp_path))
    assert told["refused"].startswith("GraphStateError"), told
    assert "native replayers that did not drain" in told["refused"]
    assert not [name for name in told["cores"] if name.startswith("sm")]
