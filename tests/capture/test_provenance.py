"""The record: what a reviewer needs, and nothing that says who or where."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from blake3 import blake3

from heliograph import _native
from heliograph.capture import provenance as provenance_module
from heliograph.capture.again import Again
from heliograph.capture.environment import FIXED, RECORDED, child_environment, recorded_environment
from heliograph.capture.export import check_arguments
from heliograph.capture.provenance import (
    Notes,
    completed,
    factory_sources,
    kernel_sources,
    native_libraries,
    path_digest,
    provenance,
    source_state,
    without_paths,
)
from heliograph.core.provenance import check_private
from heliograph.errors import UsageError

MODEL = """
import told_helper, told_parts.inner
from torch import nn
from heliograph.capture import CaptureSpec, EntrySpec

def make():
    return nn.Identity(), CaptureSpec("identity", (EntrySpec("run", ({},), {}, dict),))
"""


def test_a_path_in_the_command_is_replaced_by_the_digest_of_what_it_holds(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"weights")
    digest = blake3(b"weights").hexdigest()
    assert without_paths(str(file)) == f"file:{digest}"
    assert without_paths(f"--model={file}") == f"--model=file:{digest}"
    assert without_paths("/nowhere/at/all") == "path"
    assert without_paths(str(tmp_path)).startswith("folder:")


def test_a_path_with_spaces_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "Jane Secret" / "a=b my model.gguf"
    file.parent.mkdir()
    file.write_bytes(b"weights")
    digest = blake3(b"weights").hexdigest()
    for path in (file, file.relative_to(tmp_path)):
        assert without_paths(str(path)) == f"file:{digest}"
        assert without_paths(f"--model={path}") == f"--model=file:{digest}"
    assert without_paths("-ffile-prefix-map=/data/a=/b -O3") == "-ffile-prefix-map=path -O3"


def test_of_a_function_in_a_file_the_files_digest_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "my model.py"
    file.write_bytes(b"def make(): ...")
    digest = blake3(b"def make(): ...").hexdigest()
    assert without_paths(f"{file}:make") == f"file:{digest}:make"


def test_a_command_that_names_the_user_is_refused_before_the_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "lovelace")
    cores = tmp_path / "lovelace"
    cores.mkdir()
    for word in (str(cores), f"--cores={cores}", "lovelaces"):
        monkeypatch.setattr(sys, "argv", ["heliograph", "capture", word])
        check_arguments(cores, name=None, cap=1 << 20, device="host")
    for word in ("lovelace-7b", "--name=lovelace", f"{cores} lovelace"):
        monkeypatch.setattr(sys, "argv", ["heliograph", "capture", word])
        with pytest.raises(UsageError):
            check_arguments(cores, name=None, cap=1 << 20, device="host")


def test_bytes_that_are_no_text_are_escaped() -> None:
    assert without_paths("--note=\udcff") == "--note=\\udcff"


def test_a_models_own_modules_are_told_by_their_names_below_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    inner = tmp_path / "told_parts" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "model.py").write_text(MODEL)
    for file in (tmp_path / "told_helper.py", tmp_path / "unused.py", inner.parent / "__init__.py"):
        file.write_text("")
    (inner / "__init__.py").write_text("")
    factory = f"{tmp_path / 'model.py'}:make"
    Again(factory).make()

    def told() -> dict[str, str]:
        record = provenance(Notes(retain="template", sources=factory_sources(factory)))
        check_private(record, (str(tmp_path),))
        return {item.name: item.value for item in record.source_files}

    before = told()
    assert list(before) == ["model.py", "told_helper.py", "told_parts/__init__.py", "told_parts/inner/__init__.py"]
    (tmp_path / "told_helper.py").write_text("edited = True")
    assert before | {"told_helper.py": blake3(b"edited = True").hexdigest()} == told()
    assert factory_sources("heliograph.models.load_cuda:make") == {}


def test_words_that_are_no_paths_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for word in ("capture", "--cap=64MiB", "--slot", "3", "-O3 -DNDEBUG"):
        assert without_paths(word) == word
    Path("capture").write_bytes(b"")
    assert without_paths("capture").startswith("file:")


def test_a_folders_digest_is_of_the_names_and_the_bytes_in_it(tmp_path: Path) -> None:
    def told(**files: bytes) -> str:
        for file in tmp_path.iterdir():
            file.unlink()
        for name, content in files.items():
            (tmp_path / name).write_bytes(content)
        return path_digest(tmp_path)

    assert told(a=b"1", b=b"2") == told(b=b"2", a=b"1")
    assert len({told(a=b"1"), told(a=b"2"), told(b=b"1"), told(a=b"1", b=b"2"), told()}) == 5


def test_a_file_that_is_cut_short_while_it_is_hashed_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(bytes(1 << 20))

    class Cutting:
        """Cuts the file as soon as something was read of it."""

        def __init__(self) -> None:
            self.size = 0

        def update(self, piece: bytes) -> None:
            self.size += len(piece)
            os.truncate(file, 4096)

        def hexdigest(self) -> str:
            return str(self.size)

    monkeypatch.setattr(provenance_module, "blake3", Cutting)
    monkeypatch.setattr(provenance_module, "PIECE", 64 << 10)
    assert path_digest(file) == f"file:{64 << 10}"


def test_what_the_loader_has_read_is_not_read_again(tmp_path: Path) -> None:
    link, file = tmp_path / "link.gguf", tmp_path / "model.gguf"
    file.write_bytes(b"other bytes by now")
    link.symlink_to(file)
    read = {str(file.resolve()): "ab" * 32}
    assert without_paths(str(link), partial(path_digest, read=read)) == f"file:{'ab' * 32}"
    assert path_digest(tmp_path, read) != path_digest(tmp_path)


def test_a_path_that_cannot_be_read_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **more: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "key").write_bytes(b"")
    monkeypatch.setattr(Path, "open", refuse)
    assert path_digest(tmp_path / "key") == path_digest(tmp_path) == "path"


def test_only_listed_variables_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIOGRAPH_SECRET", "token")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    recorded = recorded_environment()
    assert recorded["OMP_NUM_THREADS"] == "3"
    assert recorded.keys() <= {*FIXED, *RECORDED}
    assert child_environment()["PYTHONHASHSEED"] == "0"


def test_the_commit_and_what_differs_from_it_are_told(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        ended = subprocess.run(["git", "-C", tmp_path, *identity, *arguments], check=True, capture_output=True)
        return ended.stdout.decode().strip()

    assert source_state(tmp_path) == ("", "")
    git("init", "-q")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("1\n")
    git("add", "src")
    git("commit", "-qm", "one")
    commit = git("rev-parse", "HEAD")
    assert source_state(tmp_path) == (commit, "")
    (tmp_path / "src" / "a.py").write_text("2\n")
    changed = source_state(tmp_path)
    assert changed[0] == commit
    assert len(changed[1]) == 64
    (tmp_path / "src" / "b.py").write_text("3\n")
    assert source_state(tmp_path)[1] not in ("", changed[1])


def test_the_record_names_compiler_libraries_and_kernel_sources_of_this_build() -> None:
    record = provenance(Notes(retain="template", sources={"models/model.gguf": "00" * 32}, families=("probe",)))
    assert {item.name: item.value for item in record.compiler}["compiler"] == _native.BUILD["compiler"]
    libraries = {item.name: item.value for item in record.libraries}
    extension = Path(_native.__file__)
    assert libraries[extension.name] == hashlib.sha256(extension.read_bytes()).hexdigest()
    assert "libtorch_cpu.so" in libraries
    assert {"probe.cpp", "kernel.h"} <= {item.name for item in record.sources}
    assert "linear.cpp" not in {item.name for item in record.sources}
    assert record.source_files[0].name == "model.gguf"
    check_private(record)


def test_a_completed_record_has_the_costs_and_times_noted_since() -> None:
    notes = Notes(retain="template")
    record = provenance(notes)
    notes.costs["nodes"] = "7"
    notes.phases["record"] = 12
    notes.findings = ("kept",)
    done = completed(record, notes)
    assert [(item.name, item.value) for item in done.costs] == [("nodes", "7")]
    assert [(phase.name, phase.nanoseconds) for phase in done.phases] == [("record", 12)]
    assert done.findings == ("kept",)
    assert done.created == record.created


def test_digests_of_sources_are_those_of_the_files() -> None:
    folder = Path(__file__).parents[2] / "native" / "host" / "kernels"
    assert kernel_sources(["probe"])["probe.cpp"] == blake3((folder / "probe.cpp").read_bytes()).hexdigest()


def test_libraries_are_read_once() -> None:
    assert native_libraries() is native_libraries()
