"""Nodes and edges that ordinary launches do not make: a fresh process rebuilds what was recorded, field by field,
and the bits are those that PyTorch computes without a graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu.edges import BODIES, CLUSTER, COOPERATIVE, WIDTH, expected
from gpu.runs import HERE, last_inputs, outputs, prepared, replayed, script

pytestmark = pytest.mark.gpu
KERNEL, COPY, MEMSET, EMPTY = 0, 1, 2, 5
PRIORITY = 8
PROGRAMMATIC = bytes([1, 0, 1, 0, 0, 0, 0, 0]).hex()


def captured(folder: Path, name: str, **more: object) -> dict[str, Any]:
    """By range: what these nodes have is not told apart by a census."""
    more = {"exact": False, "retain": "executable", "replays": 5, "templates": True, **more}
    return prepared(folder, f"{HERE / 'edges.py'}:{name}", **more)  # type: ignore[arg-type]


def nodes(said: dict[str, Any]) -> list[dict[str, Any]]:
    return said["templates"]["step/4"]["nodes"]


def attributes(said: dict[str, Any]) -> dict[str, set[int]]:
    """The ids of attributes by function."""
    found: dict[str, set[int]] = {}
    for node in nodes(said):
        found.setdefault(node["function"], set()).update(number for number, _ in node["attrs"])
    return found


def _programmatic(said: dict[str, Any]) -> None:
    (first, second) = (number for number, node in enumerate(nodes(said)) if node["function"] in ("first", "second"))
    assert [first, second, PROGRAMMATIC] in said["templates"]["step/4"]["edges"]


def _clusters(said: dict[str, Any]) -> None:
    assert CLUSTER in attributes(said)["clustered"]


def _cooperative(said: dict[str, Any]) -> None:
    assert COOPERATIVE in attributes(said)["turned"]


def _forked(said: dict[str, Any]) -> None:
    assert PRIORITY in attributes(said)["first"], "of the side stream"
    targets = [target for _, target, _ in said["templates"]["step/4"]["edges"]]
    assert len(set(targets)) < len(targets), "a node that waits for both streams"


def _fills_and_copies(said: dict[str, Any]) -> None:
    assert [node["memset"][1] for node in nodes(said) if node["kind"] == MEMSET] == [1, 2, 4]
    assert sum(node["kind"] == COPY for node in nodes(said)) >= 2


def _inside(said: dict[str, Any]) -> None:
    kinds = [node["kind"] for node in nodes(said)]
    assert EMPTY in kinds
    assert [node["function"] for node in nodes(said)].count("first") == 3


CHECKS = {
    "programmatic": _programmatic,
    "clusters": _clusters,
    "cooperative": _cooperative,
    "forked": _forked,
    "fills_and_copies": _fills_and_copies,
    "inside": _inside,
}


@pytest.mark.parametrize("name", BODIES)
def test_rebuilt_as_recorded(tmp_path: Path, name: str) -> None:
    said = captured(tmp_path, name)
    CHECKS[name](said)
    rebuilt = script("rebuild.py", said["core"])
    assert rebuilt["templates"] == said["templates"]
    assert not rebuilt["torch"]
    assert replayed(said)["digests"] == said["digests"]
    x = torch.frombuffer(bytearray(last_inputs(said, "step", {"rows": 4})["x"]), dtype=torch.float32)
    out = torch.frombuffer(bytearray(outputs(said, "step", {"rows": 4}, "out")), dtype=torch.float32)
    assert torch.equal(out, expected(name, x.reshape(4, WIDTH)).flatten())


@pytest.mark.parametrize("flags", [0, 1, 8, 9])
def test_flags_are_read_back_in_a_fresh_process(tmp_path: Path, flags: int) -> None:
    said = captured(tmp_path, "forked", replays=2, options={"flags": flags})
    rebuilt = script("rebuild.py", said["core"])
    assert said["flags"] == [flags, flags]
    assert rebuilt["flags"] == [[flags, flags], [flags, flags]]
    assert replayed(said)["digests"] == said["digests"]
    print(json.dumps({"flags": flags, "rebuilt": rebuilt["flags"]}))
