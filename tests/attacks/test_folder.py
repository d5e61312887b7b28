"""The folder: something missing, something more, something of another kind."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from pathlib import Path

import pytest

from attacks.conftest import Verdict
from heliograph.core.policy import Policy
from heliograph.core.verify import verify
from heliograph.errors import ExtraFileError, FileKindError, MissingFileError, TamperedError
from tiny_core import TinyCore, digest

FILES = ["core.json", "provenance.json", "core.sig", "graphs.safetensors", "image", "weights", "tokenizer", "initial"]


def place(core: Path, parts: TinyCore, name: str) -> Path:
    assert parts.core.text is not None
    blobs = {
        "image": parts.core.modules[0].blob,
        "weights": parts.core.weights.slices[1].blob,
        "tokenizer": parts.core.text.tokenizer,
        "initial": parts.core.regions[1].initial[0].blob,
    }
    return core / "blobs" / blobs[name] if name in blobs else core / name


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_refused(core: Path, parts: TinyCore, refused: Verdict, name: str) -> None:
    """M10 (D5)"""
    place(core, parts, name).unlink()
    assert type(refused(core)) is MissingFileError


def test_a_missing_blobs_folder_is_refused(core: Path, refused: Verdict) -> None:
    """M10"""
    shutil.rmtree(core / "blobs")
    assert type(refused(core)) is MissingFileError


def test_an_empty_blobs_folder_is_refused(core: Path, refused: Verdict) -> None:
    """M10"""
    for file in (core / "blobs").iterdir():
        file.unlink()
    assert type(refused(core)) is MissingFileError


EXTRA = [
    "README.md", ".git", ".hidden", "core.json.bak", "Core.json", "core.json ", "extra.safetensors", "tokenizer.json",
    "evil.so", "core.oms.json", "config.json", "-", "\n", "blobs2", "c\u043ere.json", "blobs/.hidden", "blobs/README",
    "blobs/" + "0" * 64, "blobs/new-blob", "blobs/tokenizer.json", "blobs/evil.so",
]  # fmt: skip


@pytest.mark.parametrize("name", EXTRA, ids=ascii)
def test_an_extra_file_is_refused(core: Path, refused: Verdict, name: str) -> None:
    """M10 (H5): the loader would never open it, and it is still refused."""
    (core / name).write_bytes(b"extra")
    assert type(refused(core)) is ExtraFileError
    (core / name).unlink()


def test_an_extra_folder_is_refused(core: Path, refused: Verdict) -> None:
    """M10"""
    (core / "blobs" / "more").mkdir()
    assert type(refused(core)) is ExtraFileError


def test_a_whole_blob_that_the_core_does_not_name_is_refused(core: Path, refused: Verdict) -> None:
    """M10"""
    (core / "blobs" / digest(b"whole")).write_bytes(b"whole")
    assert type(refused(core)) is ExtraFileError


@pytest.mark.parametrize("name", FILES)
def test_a_link_to_the_very_file_is_refused(
    core: Path, parts: TinyCore, refused: Verdict, tmp_path: Path, name: str
) -> None:
    """M11 (H1)"""
    file = place(core, parts, name)
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert type(refused(core)) is FileKindError


def test_a_link_to_the_very_blobs_folder_is_refused(core: Path, refused: Verdict, tmp_path: Path) -> None:
    """M11"""
    (core / "blobs").rename(tmp_path / "elsewhere")
    (core / "blobs").symlink_to(tmp_path / "elsewhere")
    assert type(refused(core)) is FileKindError


@pytest.mark.parametrize("name", FILES)
def test_a_dangling_link_is_refused(core: Path, parts: TinyCore, refused: Verdict, name: str) -> None:
    """M11"""
    file = place(core, parts, name)
    file.unlink()
    file.symlink_to("nowhere")
    assert type(refused(core)) is FileKindError


@pytest.mark.parametrize("name", FILES)
def test_a_folder_in_place_of_a_file_is_refused(core: Path, parts: TinyCore, refused: Verdict, name: str) -> None:
    """M11"""
    place(core, parts, name).unlink()
    place(core, parts, name).mkdir()
    assert type(refused(core)) is FileKindError


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_in_place_of_a_file_is_refused_at_once(core: Path, parts: TinyCore, refused: Verdict, name: str) -> None:
    """M11: opening a pipe would wait for a writer."""
    place(core, parts, name).unlink()
    os.mkfifo(place(core, parts, name))
    assert type(refused(core)) is FileKindError


@pytest.mark.parametrize("name", ["core.json", "weights"])
def test_a_socket_in_place_of_a_file_is_refused(
    core: Path, parts: TinyCore, refused: Verdict, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """M11"""
    file = place(core, parts, name)
    file.unlink()
    monkeypatch.chdir(file.parent)  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(file.name)
        assert type(refused(core)) is FileKindError


@pytest.mark.parametrize("name", FILES)
def test_a_device_in_place_of_a_file_is_refused(core: Path, parts: TinyCore, refused: Verdict, name: str) -> None:
    """M11"""
    place(core, parts, name).unlink()
    os.mknod(place(core, parts, name), stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero
    assert type(refused(core)) is FileKindError


def test_a_file_in_place_of_the_blobs_folder_is_refused(core: Path, refused: Verdict) -> None:
    """M11"""
    shutil.rmtree(core / "blobs")
    (core / "blobs").write_bytes(b"")
    assert type(refused(core)) is FileKindError


def test_a_hard_link_is_a_file_like_any_other(core: Path, parts: TinyCore, tmp_path: Path) -> None:
    """M94: that is how cores share blobs."""
    for file in (core / "blobs").iterdir():
        os.link(file, tmp_path / file.name)
    verify(core, Policy.only(parts.key.public_bytes)).close()


@pytest.mark.parametrize("name", ["image", "weights", "tokenizer", "initial", "graphs.safetensors"])
@pytest.mark.parametrize("change", ["one byte less", "one byte more", "empty", "1 TiB"])
def test_a_file_of_another_length_is_refused(
    core: Path, parts: TinyCore, refused: Verdict, name: str, change: str
) -> None:
    """M12 (D1)"""
    file = place(core, parts, name)
    size = file.stat().st_size
    size = {"one byte less": size - 1, "one byte more": size + 1, "empty": 0, "1 TiB": 1 << 40}[change]
    os.truncate(file, size)
    assert isinstance(refused(core), TamperedError)


def test_two_weight_files_exchanged_are_refused(core: Path, parts: TinyCore, refused: Verdict) -> None:
    """M13, M46: sizes and names fit."""
    first, second, third = (core / "blobs" / part.blob for part in parts.core.weights.slices)
    second.rename(core / "kept")
    first.rename(second)
    (core / "kept").rename(first)
    assert isinstance(refused(core), TamperedError)
    assert third.is_file()


def test_a_weight_file_full_of_holes_is_refused(core: Path, parts: TinyCore, refused: Verdict) -> None:
    """M46 (D1): the right length, and nothing in it."""
    file = place(core, parts, "weights")
    size = file.stat().st_size
    os.truncate(file, 0)
    os.truncate(file, size)
    assert isinstance(refused(core), TamperedError)
