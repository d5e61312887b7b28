"""Small files that ask for much: refused at once, without taking the time or the memory they ask for."""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from attacks.conftest import Verdict
from attacks.test_paths import signed
from heliograph.core.format import MAX_JSON_BYTES
from heliograph.core.policy import Policy
from heliograph.core.verify import verify
from heliograph.errors import FormatError
from tiny_core import TinyCore

SECONDS = 10.0
BYTES = 256 << 20


@contextmanager
def within_limits() -> Iterator[None]:
    """Fails when the block takes long or much memory."""
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert time.monotonic() - start < SECONDS
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < BYTES


def ask(parts: TinyCore, path: Path) -> FormatError:
    with within_limits(), pytest.raises(FormatError) as error:
        verify(path, Policy.only(parts.key.public_bytes))
    return error.value


BOMBS: dict[str, tuple[str, Callable[[Any], None]]] = {
    "weights of 2^53 bytes": ("M44", lambda core: core["weights"].update(size=(1 << 53) - 1)),
    "weights of 2^53 bytes in a region": ("M32", lambda core: (
        core["weights"].update(size=(1 << 53) - 1), core["regions"][0].update(size=(1 << 53) - 1))),
    "as many weights as the span holds": ("M43", lambda core: (
        core["weights"].update(size=core["regions"][0]["span"]),
        core["regions"][0].update(size=core["regions"][0]["span"]))),
    "a shape that multiplies to much": ("M37", lambda core: core["buffers"][0].update(shape=[(1 << 53) - 1] * 16)),
    "a shape of many extents": ("M4", lambda core: core["buffers"][0].update(shape=[1] * 100_000)),
    "a tensor that multiplies to much": ("M45", lambda core: core["weights"]["tensors"][0].update(
        shape=[(1 << 53) - 1] * 16)),
    "units without end": ("M48", lambda core: core["self_tests"][0]["cases"][0].update(units=(1 << 53) - 1)),
    "a name of 16 MiB": ("M4", lambda core: core["buffers"][0].update(name="x" * (16 << 20))),
    "a blob of 2^53 bytes": ("M51", lambda core: core["modules"][0].update(size=(1 << 53) - 1)),
    "graphs of 2^53 bytes": ("M60", lambda core: core["graphs_file"].update(size=(1 << 53) - 1)),
    "a graph of 2^53 nodes": ("M70", lambda core: core["graphs"][0].update(nodes=(1 << 53) - 1)),
    "a graph of 2^53 edges": ("M70", lambda core: core["graphs"][0].update(edges=(1 << 53) - 1)),
    "nesting": ("M2", lambda core: core.update(text=json.loads("[" * 500 + "]" * 500))),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_number_that_asks_for_much_is_refused_at_once(
    parts: TinyCore, refused: Verdict, tmp_path: Path, name: str
) -> None:
    """M1 to M4, M32, M37, M43, M44, M45, M48, M51, M60, M70 (D12)"""
    rule, change = BOMBS[name]
    path = signed(parts, tmp_path, change)
    assert ask(parts, path).rule == rule
    refused(path)


def test_a_core_json_of_more_than_64_mib_is_refused_unread(core: Path, parts: TinyCore) -> None:
    """M1"""
    os.truncate(core / "core.json", MAX_JSON_BYTES + 1)
    assert ask(parts, core).rule == "M1"


@pytest.mark.parametrize("text", [b"[" * (8 << 20), b'{"a":' * (1 << 20), b'"' + b"[" * (8 << 20), b"\\" * (8 << 20)])
def test_a_well_signed_bomb_for_parsers_is_refused_at_once(parts: TinyCore, tmp_path: Path, text: bytes) -> None:
    """M2, M3"""
    assert ask(parts, parts.write(tmp_path, core=text)).rule in {"M2", "M3", "M4"}
    assert ask(parts, parts.write(tmp_path / "p", provenance=text)).rule in {"M2", "M3", "M4"}


def test_a_million_blobs_that_are_not_there_are_refused_at_once(parts: TinyCore, tmp_path: Path) -> None:
    """M51"""

    def change(core: Any) -> None:
        more = [{"digest": f"{number:064x}", "size": 0} for number in range(1, 200_000)]
        core["blobs"] = sorted([*core["blobs"], *more], key=lambda blob: blob["digest"])

    assert ask(parts, signed(parts, tmp_path, change)).rule == "M51"


@pytest.mark.parametrize("length", [(1 << 64) - 8, 1 << 62, 1 << 40, (1 << 20) + 8])
def test_a_header_that_claims_to_be_long_is_refused_at_once(
    parts: TinyCore, refused: Verdict, tmp_path: Path, length: int
) -> None:
    """M60"""
    data = length.to_bytes(8, "little") + parts.graphs_bytes()[8:]
    path = parts.write(tmp_path, graphs=data)
    assert ask(parts, path).rule == "M60"
    refused(path)
