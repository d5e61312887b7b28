"""Nodes that ordinary models do not have: every byte of every parameter arrives, or the capture refuses by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu.kernels import cubin
from gpu.odd import LOCK, NAMESAKES, expected_bytes
from gpu.runs import HERE, outputs, prepared, refused, replayed
from heliograph.core.policy import Policy
from heliograph.core.templates import KernelNode, decode_catalogue
from heliograph.core.verify import VerifiedCore, verify
from heliograph.device.cubin import _sections, _text

pytestmark = pytest.mark.gpu
ODD = f"{HERE / 'odd.py'}"
OFFSET, SIZE = 4, 5  # fields of a section


def code(image: bytes, name: str) -> bytes:
    """The instructions of a function of a cubin."""
    sections, names = _sections(image)
    (found,) = (each for each in sections if _text(names, each[0]) == f".text.{name}")
    return image[found[OFFSET] : found[OFFSET] + found[SIZE]]


def launches(verified: VerifiedCore, graph: int, name: str) -> list[KernelNode]:
    """The nodes of a graph whose function has a name, in order."""
    return [
        node
        for node in decode_catalogue(verified.columns)[graph].nodes
        if isinstance(node, KernelNode) and verified.core.functions[node.function].name == name
    ]


def check_images(said: dict[str, Any], factory: str) -> None:
    """Each node of a core launches the very instructions that were compiled for its place in the row."""
    name, sources = NAMESAKES[factory]
    with verify(Path(said["core"]), Policy.local()) as verified:
        core = verified.core
        wanted = [code(cubin(source, core.target.arch), name) for source in sources]
        assert len(set(wanted)) == len(sources)
        for graph in range(len(core.graphs)):
            modules = [core.modules[core.functions[node.function].module] for node in launches(verified, graph, name)]
            assert [code(verified.blob(module.blob), name) for module in modules] == wanted
            assert len({module.blob for module in modules}) == len(sources)


@pytest.mark.parametrize("factory", ["same_name", "same_mangled", "dynamic_shared", "in_struct", "variables", "lock"])
def test_replays_with_the_same_bits(tmp_path: Path, factory: str) -> None:
    said = prepared(tmp_path, f"{ODD}:{factory}", retain="executable", replays=10)
    assert replayed(said)["digests"] == said["digests"]
    if factory in NAMESAKES:
        check_images(said, factory)


def test_a_python_value_that_was_frozen_is_seen(tmp_path: Path) -> None:
    """What the other tests compare with is the model itself: replays here and elsewhere agree with each other alone."""
    said = prepared(tmp_path, f"{ODD}:frozen", compared=False, retain="executable", replays=3)
    assert replayed(said)["digests"] == said["digests"]
    assert said["eager"]["different"] == len(said["digests"])


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
        ("pinned", ("ForeignMemoryError", "pair", "a pinned allocation of")),
        ("managed", ("ForeignMemoryError", "pair", "a managed allocation of")),
        ("module_global", ("pair", "global last")),
        ("reads_scratch", ("other results with scratch of left-overs", "step/1 out")),
    ],
)
def test_planted_faults_are_named(tmp_path: Path, factory: str, words: tuple[str, ...]) -> None:
    said = refused(tmp_path, f"{ODD}:{factory}")
    assert all(word in said for word in words), said[-3000:]
    assert not list(tmp_path.glob("*/core.json"))


def test_memory_that_was_given_back_before_the_capture_stops_it(tmp_path: Path) -> None:
    """The driver knows no allocation there any more, so nothing tells the word from a number: the checker's process,
    which has nothing there either, names the graph that faults. If somebody got that memory since, it is foreign."""
    said = refused(tmp_path, f"{ODD}:gone")
    print(said[-1500:])
    assert ("CheckerError" in said and "step/1" in said) or ("ForeignMemoryError" in said and "reads" in said)
    assert not list(tmp_path.glob("*/core.json"))


def test_a_lock_in_lasting_memory_is_kept_at_zero(tmp_path: Path) -> None:
    """The words that the kernel's last parameter points at are in the core, as they were before the first launch."""
    said = prepared(tmp_path, f"{ODD}:lock")
    with verify(Path(said["core"]), Policy.local()) as verified:
        core = verified.core
        (region,) = (each for each in core.regions if each.role == "persistent")
        for graph in range(len(core.graphs)):
            (node,) = launches(verified, graph, "last")
            lock = max(node.refs, key=lambda ref: ref.at)
            buffer = core.buffers[lock.buffer]
            assert (lock.at, buffer.role) == (24, "persistent")
            at = buffer.offset + lock.offset
            (kept,) = (each for each in region.initial if each.offset <= at < each.offset + each.size)
            assert verified.blob(kept.blob)[at - kept.offset :][: len(LOCK)] == LOCK
