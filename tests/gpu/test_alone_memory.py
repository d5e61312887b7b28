"""Loads on a GPU whose memory others hold (run alone): a load serves every replay, or is refused with numbers before
anything was taken; never does memory end when a bucket is built later. And after a handover nothing of the capture is
left."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gpu.ballast import ballast
from gpu.factories import UNITS
from gpu.runs import HERE, replayed, script
from tiny_models import random_model, write_gguf

pytestmark = pytest.mark.gpu
MIB = 1 << 20
STEPS = (64, 8, 4, -4, -8, -64)  # MiB around what the plan needs
NOISE = 16 * MIB


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("memory")
    write_gguf(folder / "m.gguf", random_model("llama"), matrices="Q4_1", embedding="Q8_0")
    wanted = {
        "factory": f"{HERE / 'factories.py'}:blocks",
        "arguments": [str(folder / "m.gguf")],
        "cores": str(folder / "cores"),
        "exact": False,
        "retain": "executable",
        "replays": 3,
    }
    (folder / "cores").mkdir()
    told = script("hand_over.py", given=wanted)
    said: dict[str, Any] = json.loads((folder / "cores" / "said").read_text())
    return said | {"handed over": told}


def fits(captured: dict[str, Any], units: int = UNITS, memory: int = 0) -> dict[str, Any]:
    core = captured["core"]
    return script("fits.py", core, str(Path(core).parent / "plan"), str(units), str(memory))


def need(figures: dict[str, Any], budget: int) -> int:
    """Bytes that a load of these figures needs of a budget."""
    return figures["needed"] + budget // 50


@pytest.fixture(scope="module")
def steps(captured: dict[str, Any]) -> list[dict[str, Any]]:
    """A load at each step around the limit."""
    roomy = fits(captured)
    limit = -(-roomy["needed"] * 50 // 49)  # the budget of which 2 % stay free
    found = []
    with ballast() as held:
        before = held.leave(1 << 60)
        context = before - fits(captured)["free"]  # what a process takes before it plans
        for step in STEPS:
            left = held.leave(limit + context + step * MIB)
            said = fits(captured)
            found.append(said | {"step": step, "left": left, "limit": limit})
            names = ("free", "refused", "weights", "needed", "executables", "free when loaded", "taken when built")
            told = {name: said.get(name) for name in (*names, "taken after that")}
            print(json.dumps({"step MiB": step, "limit": limit, **told}))
    return found


def test_it_serves_or_is_refused_with_numbers(captured: dict[str, Any], steps: list[dict[str, Any]]) -> None:
    for said in steps:
        if "refused" in said:
            found, required = re.findall(r"\d+", said["refused"].split(";")[0]), re.findall(r"\d+", said["refused"])[1:]
            assert abs(int(found[0]) - said["free"]) <= NOISE
            assert int(required[0]) > int(found[0])
            assert said["taken"] == {"bytes_mapped": 0, "modules_loaded": 0, "pinned_bytes": 0}, "nothing was taken"
        else:
            assert said["digests"] == [captured["digests"]] * 2
            assert said["after load"] == {"modules_loaded": 0, "bytes_mapped": 0}
            assert said["budget"] >= need(said, said["budget"])


def test_the_limit_is_where_the_plan_puts_it(steps: list[dict[str, Any]]) -> None:
    """Some were refused, some served, each on its side of the limit."""
    refused = [said["free"] for said in steps if "refused" in said]
    served = [said["free"] for said in steps if "refused" not in said]
    assert refused
    assert served
    assert max(refused) < min(served)
    assert max(refused) < steps[0]["limit"] + NOISE
    assert min(served) > steps[0]["limit"] - NOISE


def served(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = [said for said in steps if "refused" not in said]
    assert found
    return found


def test_what_is_built_later_comes_out_of_the_plan(steps: list[dict[str, Any]]) -> None:
    for said in served(steps):
        assert said["taken when built"] <= said["needed"], said


def test_nothing_more_is_taken_when_all_is_built(steps: list[dict[str, Any]]) -> None:
    """But for what the driver takes for itself, in pieces of 2 MiB."""
    for said in served(steps):
        assert said["taken after that"] <= 4 * MIB, said


def test_the_bytes_read_and_copied_equal_the_models_size(steps: list[dict[str, Any]]) -> None:
    for said in served(steps):
        assert said["weights"]["read and copied"] == said["weights"]["size"] > 0


def test_what_is_left_becomes_blocks(captured: dict[str, Any]) -> None:
    """With a stated amount of memory all that fits is blocks; with more memory there are more."""
    least = fits(captured)
    unit = 2 * 2 * 2 * 16 * 16 * 2  # bytes: layers, keys and values, heads, tokens, halves
    amounts = [least["needed"] + least["needed"] // 40 + extra * MIB for extra in (64, 256)]
    small, large = (fits(captured, units=0, memory=amount)["units"] for amount in amounts)
    assert small > UNITS
    assert abs((large - small) * unit - 192 * MIB * 49 // 50) <= 4 * MIB


def test_free_memory_after_a_handover_is_that_of_a_fresh_process(captured: dict[str, Any]) -> None:
    told = captured["handed over"]
    assert told["process"] == captured["process"]
    assert told["digests"] == captured["digests"]
    fresh = replayed(captured)
    assert abs(told["budget"] - fresh["budget"]) <= NOISE
