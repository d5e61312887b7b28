"""Both ways to retain 64 graphs, on a GPU that has room for their executables and on one that has not (run alone). As
templates they are captured, checked and published on both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu.runs import script
from heliograph.runtime.plan import MARGIN_PART, NODE_BYTES

pytestmark = pytest.mark.gpu
MIB = 1 << 20
NOISE = 24 * MIB  # of the driver's own, which takes memory in pieces
PART = 0.4  # of what all executables take is left


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """With all memory of the GPU: what each way takes."""
    cores = tmp_path_factory.mktemp("roomy")
    found = {
        "template": script("retain.py", "template", "0", str(cores), "0"),
        "executable": script("retain.py", "executable", "0"),
    }
    graphs = found["executable"]["graphs"]
    cost = {kind: found["executable"][f"{kind} bytes"] // graphs for kind in ("device", "host")}
    seconds = {retain: round(said["seconds"], 2) for retain, said in found.items()}
    peak = {retain: said["peak host bytes"] for retain, said in found.items()}
    print(json.dumps({"bytes per executable": cost, "nodes of each": found["executable"]["nodes"] // graphs,
                      "seconds": seconds, "peak host bytes": peak, "both": found}))  # fmt: skip
    return found


@pytest.fixture(scope="module")
def left(roomy: dict[str, dict[str, Any]]) -> int:
    """Bytes of memory in which some of the executables fit."""
    took = roomy["template"]["free with executables"] - roomy["executable"]["free with executables"]
    assert took > 2 * NOISE, "executables that can be told from noise"
    return int(PART * took)


@pytest.fixture(scope="module")
def checked(roomy: dict[str, dict[str, Any]]) -> int:
    """Bytes of memory in which a process has room for one executable at a time, but a load has none for all."""
    said = roomy["template"]
    load, nodes = said["load"], said["nodes"] // said["graphs"]
    context = said["free before the load"] - load["free"]
    one = load["needed"] - load["executables"] + NODE_BYTES * nodes
    least, most = (needed * MARGIN_PART // (MARGIN_PART - 1) for needed in (one, load["needed"]))
    assert most - least > 4 * NOISE
    return int(context + (least + most) // 2)


def test_costs_are_counted_and_given_back(roomy: dict[str, dict[str, Any]]) -> None:
    template, executable = roomy["template"], roomy["executable"]
    assert (template["created"], template["device bytes"], template["host bytes"]) == (0, 0, 0)
    assert (executable["created"], executable["live"]) == (executable["graphs"], 0)
    took = template["free with executables"] - executable["free with executables"]
    assert abs(executable["device bytes"] - took) <= NOISE, "what is counted is what is gone"
    assert executable["device bytes"] <= 4096 * executable["nodes"] + NOISE
    assert abs(executable["after"] - template["after"]) <= NOISE


def test_executable_stops_cleanly_where_they_do_not_fit(roomy: dict[str, dict[str, Any]], left: int) -> None:
    said = script("retain.py", "executable", str(left))
    print(json.dumps(said))
    assert said["stopped"], said
    assert 0 < said["created"] < said["graphs"]
    assert said["live"] == 0
    assert abs(said["after"] - roomy["template"]["after"]) <= NOISE, "free memory is what it was"


def test_template_finishes_where_they_do_not_fit(tmp_path: Path, left: int, checked: int) -> None:
    """From the first capture to the published core: no executable in this process, in the checker's one at a time."""
    said = script("retain.py", "template", str(left), str(tmp_path), str(checked))
    print(json.dumps(said))
    assert said["recorded"] == said["graphs"]
    assert (said["created"], said["device bytes"], said["host bytes"]) == (0, 0, 0)
    assert said["runs"] == 2 * said["graphs"] + 1
    assert Path(said["core"], "core.json").exists()
    assert "for executables" in said["load"].get("refused", ""), "all executables together would not fit"
