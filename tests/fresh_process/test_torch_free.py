"""Every module on the path of a replay imports without torch and without numpy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "heliograph"
MODULES = sorted(
    ".".join(("heliograph", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
    for folder in ("core", "device", "runtime")
    for path in (PACKAGE / folder).rglob("*.py")
)
SCRIPT = """
import importlib, json, sys
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
maps = open("/proc/self/maps").read()
print(json.dumps([sorted({"torch", "numpy"} & sys.modules.keys()), "libtorch" in maps or "numpy" in maps]))
"""


def imports(python: Path | str, modules: list[str]) -> list[object]:
    done = subprocess.run([python, "-c", SCRIPT, json.dumps(modules)], capture_output=True, text=True, check=True)
    result: list[object] = json.loads(done.stdout)
    return result


def test_all_modules_of_core_device_and_runtime_together() -> None:
    assert "heliograph.runtime.load" in MODULES
    assert imports(sys.executable, MODULES) == [[], False]


@pytest.mark.parametrize("module", ["heliograph.runtime.load", "heliograph.runtime.check"])
def test_the_entry_points_in_an_environment_without_torch(torch_free_python: Path, module: str) -> None:
    assert imports(torch_free_python, [module]) == [[], False]
