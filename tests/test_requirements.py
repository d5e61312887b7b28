"""docs/requirements.md maps every requirement to what shows it; this keeps the map true."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROW = re.compile(r"^\| ([RB]\d+) \| (.+?) \| (.+?) \|$", re.MULTILINE)
EVIDENCE = re.compile(r"`((?:tests|benchmarks|examples)/[\w/.]+\.py)(?:::(\w+))?`")
RESULT = re.compile(r"`(tests/[\w/]+\.py(?:::\w+)?|test_\w+)`")
GPU = re.compile(r"\bmark\.gpu\b")
NUMBERS = [f"R{n}" for n in range(1, 37)] + [f"B{n}" for n in range(1, 13)]


def rows() -> dict[str, str]:
    return {number: shown for number, _, shown in ROW.findall((ROOT / "docs" / "requirements.md").read_text())}


def test_every_requirement_has_a_row() -> None:
    assert sorted(rows()) == sorted(NUMBERS)


@pytest.mark.parametrize("number", NUMBERS)
def test_row_names_evidence_that_exists_or_says_not_built(number: str) -> None:
    shown = rows()[number]
    evidence = EVIDENCE.findall(shown)
    if not evidence:
        assert shown.startswith("Not built yet"), f"{number} names no test or benchmark: {shown}"
    for path, name in evidence:
        assert (ROOT / path).is_file(), f"{number} names {path}, which does not exist"
        if path.startswith("tests/"):
            found = problems((ROOT / path).read_text(), path, name, measured())
            assert not found, f"{number}: {found[0]}"


def measured() -> frozenset[str]:
    """Files and tests that a table of docs/measurements.md has a result for: ``tests/a.py``, ``tests/a.py::test_b``, or
    ``test_b`` alone."""
    found: set[str] = set()
    for row in (ROOT / "docs" / "measurements.md").read_text().splitlines():
        cells = row.split(" | ")
        if row.startswith("| ") and len(cells) > 2:
            found.update(RESULT.findall(row))
    return frozenset(found)


def problems(source: str, path: str, name: str, results: frozenset[str]) -> list[str]:
    """What is wrong with a test, or without a name with a file of tests, that stands as evidence."""
    module = ast.parse(source)
    tests = {node.name: node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)}
    if name and name not in tests:
        return [f"{path}::{name} does not exist"]
    everywhere = _marks_of_module(module)
    found = []
    for each in [name] if name else [test for test in tests if test.startswith("test_")]:
        marks = [*everywhere, *(ast.unparse(mark) for mark in tests[each].decorator_list)]
        if any("skip" in mark for mark in marks):
            found.append(f"{path}::{each} is skipped")
        if any(GPU.search(mark) for mark in marks) and not {path, f"{path}::{each}", each} & results:
            found.append(f"{path}::{each} has no last result in docs/measurements.md")
    return found


def _marks_of_module(module: ast.Module) -> list[str]:
    """What ``pytestmark`` is set to: one mark, or a list of them. Those that hold only sometimes do not count."""
    marks: list[str] = []
    for node in module.body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["pytestmark"]:
            value = node.value
            marks += [ast.unparse(each) for each in value.elts] if isinstance(value, ast.List) else []
            marks += [] if isinstance(value, ast.List | ast.IfExp) else [ast.unparse(value)]
    return marks


PLANTED = """
import pytest
{}
{}
def test_it(): pass
"""


@pytest.mark.parametrize(
    ("module", "test", "results", "wrong"),
    [
        ("", "", (), ""),
        ("pytestmark = pytest.mark.gpu", "", (), "no last result"),
        ("pytestmark = [pytest.mark.gpu, pytest.mark.timeout(9)]", "", (), "no last result"),
        ("", "@pytest.mark.gpu", (), "no last result"),
        ("pytestmark = pytest.mark.gpu", "", ("tests/t.py",), ""),
        ("pytestmark = pytest.mark.gpu", "", ("tests/t.py::test_it",), ""),
        ("pytestmark = pytest.mark.gpu", "", ("test_it",), ""),
        ("pytestmark = pytest.mark.gpu", "", ("tests/t.py::test_another",), "no last result"),
        ("pytestmark = pytest.mark.skip", "", (), "is skipped"),
        ("", "@pytest.mark.skipif(True, reason='')", (), "is skipped"),
    ],
)
@pytest.mark.parametrize("name", ["test_it", ""])
def test_what_cannot_stand_as_evidence_is_found(
    module: str, test: str, results: tuple[str, ...], wrong: str, name: str
) -> None:
    """A file is as good as its tests."""
    found = problems(PLANTED.format(module, test), "tests/t.py", name, frozenset(results))
    assert [wrong in each for each in found] == ([True] if wrong else [])
