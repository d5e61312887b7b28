"""An extension that was really built for another schema is one error at import; the installed one is not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from heliograph import SCHEMA, _native

ROOT = Path(__file__).parents[2]
OTHER = SCHEMA + 41


@pytest.fixture(scope="module")
def other_extension(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The extension, built from the same sources with another schema number."""
    build = tmp_path_factory.mktemp("schema")
    cmake = Path(sys.executable).parent / "cmake"
    options = [f"-DHELIOGRAPH_SCHEMA={OTHER}", "-DHELIOGRAPH_HOST_KERNELS=OFF", "-DCMAKE_BUILD_TYPE=None"]
    tools = [f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_CXX_FLAGS=-O0", "-G", "Ninja"]
    environment = os.environ | {"PATH": f"{cmake.parent}:{os.environ['PATH']}"}
    for command in ([cmake, "-S", ROOT, "-B", build, *options, *tools], [cmake, "--build", build, "-j", "2"]):
        subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL, env=environment)
    return next(build.glob("_native*.so"))


def import_with(extension: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Imports the package's Python side with an extension, away from everything installed."""
    package = folder / "heliograph"
    package.mkdir()
    for source in ("__init__.py", "errors.py"):
        (package / source).symlink_to(ROOT / "src" / "heliograph" / source)
    (package / extension.name).symlink_to(extension)
    command = [sys.executable, "-S", "-c", "import heliograph; print('imported')"]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(folder)})


@pytest.mark.timeout(900)
def test_an_extension_of_another_schema_is_one_error_that_names_both_and_says_to_rebuild(
    other_extension: Path, tmp_path: Path
) -> None:
    run = import_with(other_extension, tmp_path)
    assert run.returncode == 1
    last = run.stderr[run.stderr.index("SchemaMismatchError") :]
    assert {int(number) for number in re.findall(r"schema (\d+)", last)} == {SCHEMA, OTHER}
    assert "rebuild" in last
    assert run.stderr.count("Error") == 1


def test_the_installed_extension_is_accepted(tmp_path: Path) -> None:
    assert import_with(Path(_native.__file__), tmp_path).stdout == "imported\n"
