"""Nodes that ordinary models do not have: every byte of every parameter arrives, or the capture refuses by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu.odd import expected_bytes
from gpu.runs import HERE, outputs, prepared, refused, replayed

pytestmark = pytest.mark.gpu
ODD = f"{HERE / 'odd.py'}"


@pytest.mark.parametrize("factory", ["same_name", "dynamic_shared", "in_struct", "variables", "lock"])
def test_replays_with_the_same_bits(tmp_path: Path, factory: str) -> None:
    said = prepared(tmp_path, f"{ODD}:{factory}", retain="executable", replays=10)
    assert replayed(said)["digests"] == said["digests"]


def test_two_hundred_signatures_in_both_forms(tmp_path: Path) -> None:
    said = prepared(tmp_path, f"{ODD}:all_signatures", "200", retain="executable", replays=2)
    told = replayed(said)
    assert told["digests"] == said["digests"]
    assert outputs(said, "step", {}, "out") == expected_bytes(200)


def test_an_integer_that_looks_like_an_address_stays_one(tmp_path: Path) -> None:
    said = prepared(tmp_path, f"{ODD}:in_struct")
    refs = [
        ref for graph in said["graphs"].values() for node in graph for ref in node["refs"] if node["name"] == "pair"
    ]
    assert sorted({ref[0] for ref in refs}) == [8, 24]  # x and out, and neither the count nor what looks like one


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("freed", ("pair", "PyTorch's default pool")),
        ("module_global", ("pair", "global last")),
        ("reads_scratch", ("other results with scratch of left-overs", "step/1 out")),
    ],
)
def test_planted_faults_are_named(tmp_path: Path, factory: str, words: tuple[str, ...]) -> None:
    said = refused(tmp_path, f"{ODD}:{factory}")
    assert all(word in said for word in words), said[-3000:]


def test_a_lock_in_lasting_memory_is_kept_at_zero(tmp_path: Path) -> None:
    said = prepared(tmp_path, f"{ODD}:lock")
    assert said["kept"]["persistent"], "the counter's memory is kept by value"
