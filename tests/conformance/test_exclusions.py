"""What a device cannot run of this suite is listed with its reason, and is nothing that the contract is about."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from .conftest import COVERS
from .probe import DEVICES

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "conformance.md"
ROW = re.compile(r"^\| `(test_\w+)` \| ([\w-]+) \| (.+) \|$", re.MULTILINE)


def exclusions() -> set[tuple[str, str, str]]:
    found = set()
    for path in HERE.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            for mark in getattr(node, "decorator_list", ()):
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.excludes":
                    device, reason = mark.args[0], mark.keywords[0].value
                    assert isinstance(node, ast.FunctionDef)
                    assert isinstance(device, ast.Constant)
                    assert isinstance(reason, ast.Constant)
                    found.add((node.name, str(device.value), str(reason.value)))
    return found


def test_the_page_lists_every_exclusion_with_its_reason() -> None:
    assert set(ROW.findall(PAGE.read_text())) == exclusions()
    assert {device for _, device, _ in exclusions()} <= COVERS.keys()
    assert {name for names in COVERS.values() for name in names} == DEVICES.keys()


def test_no_exclusion_is_about_order_drain_owners_or_flags() -> None:
    for name, _, _ in exclusions():
        assert not re.search(r"order|drain|owner|flag", name)
