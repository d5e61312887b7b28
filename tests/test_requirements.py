"""docs/requirements.md maps every requirement to what shows it; this keeps the map true."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROW = re.compile(r"^\| ([RB]\d+) \| (.+?) \| (.+?) \|$", re.MULTILINE)
EVIDENCE = re.compile(r"`((?:tests|benchmarks|examples)/[\w/.]+\.py)(?:::(\w+))?`")
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
        if name:
            check_test(number, path, name)


def check_test(number: str, path: str, name: str) -> None:
    tree = ast.parse((ROOT / path).read_text())
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert name in functions, f"{number} names {path}::{name}, which does not exist"
    for decorator in functions[name].decorator_list:
        assert "skip" not in ast.unparse(decorator), f"{number}: {path}::{name} is skipped"
        if "mark.gpu" in ast.unparse(decorator):
            measured = (ROOT / "docs" / "measurements.md").read_text()
            assert name in measured, f"{number}: {path}::{name} has no last result in docs/measurements.md"
