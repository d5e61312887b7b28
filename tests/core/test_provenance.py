"""What a record must not tell."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from heliograph.core.manifest import Item
from heliograph.core.provenance import check_private, own_names
from heliograph.errors import FormatError
from tiny_core import TinyCore

TELLING = [
    "/home/ada/model", "--model=/data/x", "-I/usr/include", "-L/opt/lib", "a:/usr/bin", "see /etc/passwd", "(/tmp/x)",
    "file:///srv/x", "'/root'", "PATH=/usr/bin:/bin",
]  # fmt: skip
SILENT = [
    "bf16/f32", "https://example.org/x", "../native", "./x", "layers/0", "</s>", "-O3", "n/a", "1/2", "", "/",
    "blake3:00ff", "heliograph", "-march=x86-64-v3", "row-major/f32", "//",
]  # fmt: skip


@pytest.mark.parametrize("text", TELLING)
def test_an_absolute_path_is_refused_wherever_it_stands(tiny: TinyCore, text: str) -> None:
    """M91"""
    for change in (
        {"command": ("heliograph", text)},
        {"compiler": (Item(name="flags", value=text),)},
        {"commit": text},
    ):
        with pytest.raises(FormatError) as error:
            check_private(msgspec.structs.replace(tiny.provenance, **change), ())
        assert error.value.rule == "M91"


@pytest.mark.parametrize("text", SILENT)
def test_what_only_looks_like_a_path_is_allowed(tiny: TinyCore, text: str) -> None:
    """M91"""
    check_private(msgspec.structs.replace(tiny.provenance, command=(text,), commit=text), ())


def test_the_users_and_the_hosts_name_are_refused(tiny: TinyCore) -> None:
    """M91"""
    named = msgspec.structs.replace(tiny.provenance, command=("--note", "made by ada on lovelace"))
    for name in ("ada", "lovelace"):
        with pytest.raises(FormatError):
            check_private(named, (name,))
    check_private(named, ("love", "Ada"))
    versions = msgspec.structs.replace(tiny.provenance, versions=(Item(name="os", value="ada 22.04"),))
    check_private(versions, ("ada",))


def test_short_and_ordinary_names_are_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "root")
    assert "root" not in own_names()
    monkeypatch.setenv("LOGNAME", "ada")
    assert "ada" in own_names()
    monkeypatch.setenv("LOGNAME", "al")
    assert "al" not in own_names()


def test_a_core_that_tells_too_much_is_not_published(tiny: TinyCore, tmp_path: Path) -> None:
    """M91"""
    telling = msgspec.structs.replace(tiny.provenance, command=(f"--model={tmp_path}",))
    with pytest.raises(FormatError):
        msgspec_parts(tiny, telling).publish(tmp_path / "cores")
    assert not (tmp_path / "cores").exists()
    msgspec_parts(tiny, tiny.provenance).publish(tmp_path / "cores")
    for file in (tmp_path / "cores").rglob("*.json"):
        assert str(tmp_path) not in file.read_text()
        assert os.getcwd() not in file.read_text()


def msgspec_parts(tiny: TinyCore, provenance: object) -> TinyCore:
    return TinyCore(tiny.core, provenance, tiny.graphs, tiny.blobs, tiny.image, tiny.key)  # type: ignore[arg-type]
