"""docs/core-format.md is the law: every rule has a test, every table is what the code reads, every limit agrees."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import msgspec
import pytest

from heliograph import _native
from heliograph.core import envelope, format, manifest
from heliograph.core.columns import ITEM_BYTES
from heliograph.core.format import COLUMNS

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs" / "core-format.md").read_text()
RULES = set(re.findall(r"^- \*\*(M\d+)\*\*", DOC, re.MULTILINE))


@functools.cache
def named_by_tests() -> dict[str, set[str]]:
    """The ids in the docstrings of test functions, with the tests that name them."""
    found: dict[str, set[str]] = {}
    for file in [*(ROOT / "tests" / "core").glob("test_*.py"), *(ROOT / "tests" / "attacks").glob("test_*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for rule in re.findall(r"\bM\d+\b", ast.get_docstring(node) or ""):
                    found.setdefault(rule, set()).add(f"{file.name}::{node.name}")
    return found


@pytest.mark.parametrize("rule", sorted(RULES, key=lambda rule: int(rule[1:])))
def test_every_rule_is_named_by_a_test(rule: str) -> None:
    assert named_by_tests().get(rule)


def test_no_test_names_a_rule_that_does_not_exist() -> None:
    assert named_by_tests().keys() <= RULES


def test_no_error_names_a_rule_that_does_not_exist() -> None:
    sources = [*(ROOT / "src" / "heliograph" / "core").rglob("*.py"), ROOT / "native" / "columns.cpp"]
    named = {rule for file in sources for rule in re.findall(r"\bM\d+\b", file.read_text())}
    assert named <= RULES
    assert {"M5", "M22", "M36", "M46", "M64", "M77"} <= named


def test_the_rules_are_numbered_in_order() -> None:
    ids = [int(rule) for rule in re.findall(r"^- \*\*M(\d+)\*\*", DOC, re.MULTILINE)]
    assert ids == sorted(set(ids))


def tables() -> dict[str, list[list[str]]]:
    """Every table of the document by its first heading, as rows of cells."""
    found: dict[str, list[list[str]]] = {}
    for block in re.findall(r"(?:^\|.*\n)+", DOC, re.MULTILINE):
        rows = [[cell.strip().strip("`") for cell in line.strip("|\n ").split("|")] for line in block.splitlines()]
        found[rows[0][0]] = rows[2:]
    return found


NAMES = {"SelfTest": "self-test", "Text": "text model"}
RECORDS = {
    NAMES.get(name, name.lower()): kind
    for name, kind in [*vars(manifest).items(), *vars(envelope).items()]
    if isinstance(kind, type) and issubclass(kind, manifest.Record) and kind is not manifest.Record
}


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_every_field_is_documented_in_its_order(name: str) -> None:
    """M4"""
    fields = [field.encode_name for field in msgspec.structs.fields(RECORDS[name])]
    if name in {"statement", "subject", "predicate"}:  # described in the rules M23 to M25
        assert all(f"`{field}`" in DOC for field in fields)
        return
    assert [row[0] for row in tables()[name]] == fields


def test_every_column_is_documented_with_its_type() -> None:
    """M62, M63"""
    documented = {}
    for name, dtype, *_ in tables()["column"]:
        kind, _, width = dtype.partition(" ")
        documented[name] = (kind, (int(width.strip("[]")),) if width else ())
    assert documented == dict(COLUMNS)
    assert {dtype for dtype, _ in COLUMNS.values()} <= ITEM_BYTES.keys()


def test_every_constant_of_the_text_is_that_of_the_code() -> None:
    """M1, M2, M5, M20 to M25, M31, M38, M43, M45, M51, M60"""
    said = {
        "Version 0.": format.FORMAT == 0,
        "at most 64 MiB, `core.sig` at most 1 MiB": (format.MAX_JSON_BYTES, format.MAX_SIGNATURE_BYTES)
        == (64 << 20, 1 << 20),
        "nested at most 32 levels": format.MAX_JSON_DEPTH == 32,
        "0 to 2⁵³ − 1": format.MAX_INTEGER == 2**53 - 1,
        "1 to 4,096 printable": format.MAX_NAME == 4096,
        "at most 16 extents": format.MAX_DIMENSIONS == 16,
        "1 to 128 characters": format.MAX_CORE_NAME == 128,
        "multiple of 8 from 8 to 1 MiB": format.MAX_HEADER_BYTES == 1 << 20,
        "The file is at most 4 GiB": format.MAX_GRAPHS_BYTES == 4 << 30,
        "are at most 1 GiB long": format.MAX_BLOB_BYTES == 1 << 30,
        "at most 32,764": format.MAX_PARAM_BYTES == 32764,
        "eight slots of 4 TiB; slot *s* begins at `0x100100000000` + *s* · 12 TiB": (
            format.SLOTS, format.SLOT_SPAN, format.SLOT_BASE, format.SLOT_STRIDE
        ) == (8, 4 << 40, 0x100100000000, 12 << 40),
        "its offset is a multiple of 256": format.BUFFER_ALIGNMENT == 256,
        "`cap` is at least 1 MiB": format.MIN_CAP == 1 << 20,
        "is 2 MiB; for a cap below 2 MiB it is 1 MiB": format.SLICE_ALIGNMENT == 2 << 20,
        "Chunks are 4 MiB each": format.CHUNK_BYTES == 4 << 20,
        "`flags` is 0, 1, 8 or 9": format.FLAGS == (0, 1, 8, 9),
        "begins\n  with `.draft-`": format.DRAFT_PREFIX == ".draft-",
        "`.store/<digest>`": format.STORE == ".store",
        f"`{format.PAYLOAD_TYPE}`": True,
        f"`{format.DRAFT_PAYLOAD_TYPE}`": True,
        f"`{format.STATEMENT_TYPE}`": True,
        f"`{format.PREDICATE_TYPE}`": True,
        f"`{format.DRAFT_PREDICATE_TYPE}`": True,
        " ".join(format.DTYPES): True,
    }  # fmt: skip
    for text, agrees in said.items():
        assert text in DOC
        assert agrees
    for role in format.ROLES:
        assert f"`{role}`" in DOC
    for layout, (items, size) in format.LAYOUTS.items():
        assert f"`{layout}` ({size} bytes for {items} elements)" in DOC
    for name in (format.CORE_JSON, format.PROVENANCE_JSON, format.SIGNATURE, format.GRAPHS, format.BLOBS):
        assert f"`{name}`" in DOC


def test_ids_of_cuda_are_those_that_the_driver_layer_keeps() -> None:
    """M84, M86, M87 (B5): one table, of which the format knows what is kept."""
    kept = {(aspect, number): size for aspect, number, _, keeps, size, _ in _native.cuda_fidelity() if keeps}

    def of(aspect: str) -> dict[int, int]:
        return {number: size for (kind, number), size in kept.items() if kind == aspect}

    assert of("attribute") == format.CUDA_NODE_ATTRIBUTES
    assert of("edge").keys() == {kind for _, kind in format.CUDA_EDGES}
    assert of("port").keys() == {port for port, _ in format.CUDA_EDGES}
    assert {0, *of("flag"), sum(of("flag"))} == set(format.FLAGS)
    assert {(int(row[0]), int(row[1])) for row in tables()["attribute"]} == set(format.CUDA_NODE_ATTRIBUTES.items())
    said = ", ".join(str(number) for number in format.CUDA_FUNCTION_ATTRIBUTES[:-1])
    assert f"`function.attr.id` is {said} or {format.CUDA_FUNCTION_ATTRIBUTES[-1]}" in DOC
    for name in format.CUDA_LIMITS:
        assert f"`{name}`" in DOC
