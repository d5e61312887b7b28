"""R18: an extension that was built for another schema is one error at import."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import heliograph
from heliograph import _native

ROOT = Path(__file__).parent.parent
BUILT = Path(_native.__file__).name
NINJA = Path(sys.executable).parent / "ninja"
SITE = sysconfig.get_paths()["purelib"]
IMPORT = """
try:
    import heliograph
except Exception as error:
    print(type(error).__name__, error.found, error.required, error.hint, sep="|")
else:
    print("imported")
"""


def build_extension(schema: int, target: Path) -> None:
    """Compiles and links the extension with the commands of the build, but for the schema number."""
    (folder,) = (path.parent for path in (ROOT / "build").glob("cp*/build.ninja"))
    ninja = subprocess.run([NINJA, "-t", "commands", "_native"], cwd=folder, capture_output=True, text=True, check=True)
    commands = ninja.stdout.splitlines()
    compiles = next(line for line in commands if line.endswith("/native/module.cpp"))
    links = next(line for line in commands if f"-o {BUILT}" in line)
    stated = f"-DHELIOGRAPH_SCHEMA={heliograph.SCHEMA}"
    (made,) = {word for word in shlex.split(compiles) if word.endswith("module.cpp.o")}
    other = str(target.parent / "module.o")
    for command in (
        compiles.replace(stated, f"-DHELIOGRAPH_SCHEMA={schema}").replace(f"-o {made} ", f"-o {other} "),
        links.replace(f"{made} ", f"{other} ").replace(f"-o {BUILT}", f"-o {target}"),
    ):
        subprocess.run(command, shell=True, cwd=folder, check=True)


def import_with(extension: Path, folder: Path) -> str:
    """What importing the package prints in a fresh process, without the editable install's finder (-S)."""
    package = folder / "heliograph"
    package.mkdir()
    for path in (ROOT / "src" / "heliograph").iterdir():
        (package / path.name).symlink_to(path)
    (package / BUILT).symlink_to(extension)
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{SITE}"}
    command = [sys.executable, "-S", "-c", IMPORT]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def test_the_extension_states_the_schema_of_the_package() -> None:
    assert _native.SCHEMA == heliograph.SCHEMA
    assert _native.BUILD["schema"] == str(heliograph.SCHEMA)
    assert set(_native.BUILD) == {"compiler", "compiler_version", "flags", "schema", "cuda_headers"}


@pytest.mark.parametrize("other", [True, False], ids=["another schema", "the same schema"])
def test_an_extension_of_another_schema_is_refused_at_import(tmp_path: Path, other: bool) -> None:
    schema = heliograph.SCHEMA + 41 * other
    (tmp_path / "built").mkdir()
    extension = tmp_path / "built" / BUILT
    build_extension(schema, extension)
    said = import_with(extension, tmp_path)
    if not other:
        assert said == "imported"
        return
    kind, found, required, hint = said.split("|")
    assert kind == "SchemaMismatchError"
    assert str(schema) in found
    assert str(heliograph.SCHEMA) in required
    assert "rebuild" in hint
