"""Names and digests in a well signed core that would lead out of its folder, were they used as paths (H2, H4)."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from attacks.conftest import Verdict
from heliograph.core.envelope import Predicate
from heliograph.core.policy import Policy
from heliograph.core.verify import verify
from heliograph.errors import FormatError
from tiny_core import TinyCore

LEADING_OUT = [
    "../secret", "/etc/passwd", "a/../../x", "a//b", ".", "..", "", "a\0b", "x/", "x" * 4096, "\uff0e\uff0e/x", "..\\x",
    "../" + "0" * 61, "0" * 63, "0" * 65, "0" * 64 + "/", "0" * 64 + "\n", "F" * 64, "sha256:" + "0" * 57,
    "./" + "0" * 62, "0" * 64 + "\0", "\uff10" * 64, "~/" + "0" * 62, "%2e%2e/" + "0" * 57,
]  # fmt: skip


@contextmanager
def opened() -> Iterator[list[str]]:
    """Paths that this thread opens, looks at or lists meanwhile."""
    seen: list[str] = []
    thread, active = threading.get_ident(), [True]

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if active and threading.get_ident() == thread and event in {"open", "os.listdir", "os.stat", "os.link"}:
            seen.append(str(args[0]))

    sys.addaudithook(hook)
    try:
        yield seen
    finally:
        active.clear()


def signed(parts: TinyCore, folder: Path, change: Any) -> Path:
    """The core with its core.json changed as JSON, signed again."""
    files = parts.files()
    plain = json.loads(files["core.json"])
    change(plain)
    text = json.dumps(plain, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()
    return parts.write(folder, core=text)


# Every place in core.json where a digest stands.
def in_blobs(plain: Any, name: str) -> None:
    plain["blobs"][0]["digest"] = name


def in_slice(plain: Any, name: str) -> None:
    plain["weights"]["slices"][0]["blob"] = name


def in_module(plain: Any, name: str) -> None:
    plain["modules"][0]["blob"] = name


def in_initial(plain: Any, name: str) -> None:
    plain["regions"][1]["initial"][0]["blob"] = name


def in_inputs(plain: Any, name: str) -> None:
    plain["self_tests"][0]["cases"][0]["inputs"] = name


def in_tokenizer(plain: Any, name: str) -> None:
    plain["text"]["tokenizer"] = name


def in_graphs_file(plain: Any, name: str) -> None:
    plain["graphs_file"]["digest"] = name


def in_tensor(plain: Any, name: str) -> None:
    plain["weights"]["tensors"][0]["source"] = name


PLACES = [in_blobs, in_slice, in_module, in_initial, in_inputs, in_tokenizer, in_graphs_file, in_tensor]


@pytest.mark.parametrize("name", LEADING_OUT, ids=lambda name: ascii(name)[:24])
def test_a_digest_that_is_a_path_is_refused_before_anything_is_opened(
    parts: TinyCore, refused: Verdict, tmp_path: Path, name: str
) -> None:
    """M4 (H4)"""
    for place in PLACES:
        path = signed(parts, tmp_path / place.__name__, lambda plain, place=place: place(plain, name))
        with opened() as seen:
            error = refused(path)
        assert isinstance(error, FormatError)
        assert error.rule == "M4"
        outside = [p for p in seen if p.startswith("/") and not p.startswith((str(tmp_path), "/usr", "/proc", "/root"))]
        assert outside == []
        assert name not in seen


def test_a_blob_that_really_lies_elsewhere_is_not_followed(parts: TinyCore, refused: Verdict, tmp_path: Path) -> None:
    """M4 (H2)"""
    (tmp_path / "secret").write_bytes(b"secret")
    path = signed(parts, tmp_path / "cores", lambda plain: in_tokenizer(plain, "../../secret"))
    assert isinstance(refused(path), FormatError)


NAMES = ["../x", "/x", "a/../../x", "a//b", ".", "..", "", "a\0b", "x/", "x" * 4097, "\uff0e\uff0e/x", "a\\b", "a b"]
NAMED = [
    ("buffers", 0, "name"), ("modules", 0, "family"), ("functions", 0, "name"), ("graphs", 0, "name"),
    ("entries", 0, "name"), ("weights", "tensors", 0, "name"), ("entries", 0, "buckets", 0, "inputs", 0, "name"),
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:24])
def test_a_name_that_is_a_path_out_is_refused(parts: TinyCore, refused: Verdict, tmp_path: Path, name: str) -> None:
    """M4 (H2)"""
    for number, way in enumerate(NAMED):

        def change(plain: Any, way: tuple[Any, ...] = way) -> None:
            for part in way[:-1]:
                plain = plain[part]
            plain[way[-1]] = name

        error = refused(signed(parts, tmp_path / str(number), change))
        assert isinstance(error, FormatError)
        assert error.rule == "M4"


def test_names_that_differ_in_case_only_are_two_names(parts: TinyCore, tmp_path: Path) -> None:
    """M35: no name is a path, so a file system that folds case cannot mix them up."""

    def change(plain: Any) -> None:
        plain["buffers"][0]["name"] = "WEIGHTS/layer/0"

    path = signed(parts, tmp_path, change)
    verify(path, Policy.only(parts.key.public_bytes)).close()


def test_the_signed_name_is_never_used_as_a_path(parts: TinyCore, refused: Verdict, tmp_path: Path) -> None:
    """M25"""
    predicate = Predicate(name="../../etc", sequence=0, signed_at="2026-11-30T09:00:00Z")
    error = refused(parts.write(tmp_path, predicate=predicate))
    assert isinstance(error, FormatError)
    assert error.rule == "M25"
    assert sorted(os.listdir(tmp_path)) == [parts.name]
