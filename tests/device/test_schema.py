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
    """The extension, built with another schema number: the file that states it is compiled anew, then all is linked."""
    folder = tmp_path_factory.mktemp("schema")
    build = max(ROOT.glob("build/cp*"), key=lambda path: path.stat().st_mtime)
    ninja = Path(sys.executable).parent / "ninja"
    listed = subprocess.run(
        [str(ninja), "-C", str(build), "-t", "commands", "_native"], check=True, capture_output=True
    )
    commands = listed.stdout.decode().splitlines()
    compile_it = next(line for line in commands if line.startswith("/") and line.endswith("native/module.cpp"))
    link_it = next(line for line in commands if f" -o {Path(_native.__file__).name} " in line)
    stated, theirs = f"-DHELIOGRAPH_SCHEMA={SCHEMA} ", f"-DHELIOGRAPH_SCHEMA={OTHER} "
    assert stated in compile_it
    output, extension = "CMakeFiles/_native.dir/native/module.cpp.o", folder / Path(_native.__file__).name
    compile_it = compile_it.replace(stated, theirs).replace(output, str(folder / "module.o"))
    link_it = link_it.replace(output, str(folder / "module.o")).replace(f" -o {extension.name} ", f" -o {extension} ")
    for command in (compile_it, link_it):
        subprocess.run(command, shell=True, check=True, cwd=build)
    return extension


def import_with(extension: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Imports the package's Python side with an extension, away from everything installed."""
    package = folder / "heliograph"
    package.mkdir()
    for source in ("__init__.py", "errors.py"):
        (package / source).symlink_to(ROOT / "src" / "heliograph" / source)
    (package / extension.name).symlink_to(extension)
    command = [sys.executable, "-S", "-c", "import heliograph; print('imported')"]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(folder)})


def test_an_extension_of_another_schema_is_one_error_that_names_both_and_says_to_rebuild(
    other_extension: Path, tmp_path: Path
) -> None:
    run = import_with(other_extension, tmp_path)
    assert run.returncode == 1
    last = run.stderr[run.stderr.index("SchemaMismatchError") :]
    assert {int(number) for number in re.findall(r"schema (\d+)", last)} == {SCHEMA, OTHER}
    assert "rebuild" in last
    assert run.stderr.count("Traceback") == 1


def test_the_installed_extension_is_accepted(tmp_path: Path) -> None:
    assert import_with(Path(_native.__file__), tmp_path).stdout == "imported\n"
