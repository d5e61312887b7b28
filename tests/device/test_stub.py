"""The committed stub of the extension is the one that the built module gives."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

from heliograph import _native

ROOT = Path(__file__).parents[2]


def load_script() -> object:
    spec = importlib.util.spec_from_file_location("stub_script", ROOT / "scripts" / "stub.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["stub_script"] = module
    spec.loader.exec_module(module)
    return module


def public(names: object) -> set[str]:
    return {name for name in dir(names) if not name.startswith("_")}


def stated(body: list[ast.stmt]) -> set[str]:
    names = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    names |= {node.target.id for node in body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def test_the_committed_stub_is_what_the_module_gives() -> None:
    script = load_script()
    assert script.generate() == script.STUB.read_text(), "run scripts/stub.py --write"  # type: ignore[attr-defined]


def test_every_class_and_method_is_stated_and_nothing_else() -> None:
    tree = ast.parse((ROOT / "src" / "heliograph" / "_native.pyi").read_text())
    assert stated(tree.body) == public(_native)
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            made = getattr(_native, node.name)
            inherited = set().union(*(public(base) for base in made.__mro__[1:]))
            assert stated(node.body) == public(made) - inherited, node.name
