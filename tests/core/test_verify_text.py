"""The second door: what a process that only speaks for a core checks, in the same order, and what it does not read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from heliograph.core.format import BLOBS, CORE_JSON, GRAPHS, SIGNATURE
from heliograph.core.policy import Policy
from heliograph.core.sign import scratch_key
from heliograph.core.verify import verify
from heliograph.core.verify_text import verify_text
from heliograph.errors import CoreError, ExtraFileError, MissingFileError, SignatureError, TamperedError, UntrustedError
from tiny_core import TinyCore, tiny_core


@pytest.fixture(scope="module")
def speaking() -> TinyCore:
    return tiny_core(weight_bytes=64 << 10, text=True)


@pytest.fixture
def trusted(speaking: TinyCore) -> Policy:
    return Policy.only(speaking.key.public_bytes)


def test_it_says_what_the_whole_check_says(speaking: TinyCore, trusted: Policy, tmp_path: Path) -> None:
    path = speaking.write(tmp_path)
    text = verify_text(path, trusted)
    with verify(path, trusted) as whole:
        assert (text.core.text, text.digest, text.name) == (whole.core.text, whole.digest, whole.name)
        assert text.core.text is not None
        for blob in (text.core.text.tokenizer, text.core.text.chat_template):
            assert text.blob(blob) == whole.blob(blob)


def test_a_core_without_text_has_no_blobs(tiny: TinyCore, policy: Policy, tmp_path: Path) -> None:
    text = verify_text(tiny.write(tmp_path), policy)
    assert text.core.text is None
    with pytest.raises(KeyError):
        text.blob(text.core.blobs[0].digest)


def flipped(path: Path, name: str) -> None:
    data = bytearray((path / name).read_bytes())
    data[len(data) // 2] ^= 1
    (path / name).write_bytes(data)


def tokenizer_of(path: Path) -> str:
    return f"{BLOBS}/{json.loads((path / CORE_JSON).read_text())['text']['tokenizer']}"


CHANGES: dict[str, tuple[Callable[[Path], object], type[CoreError]]] = {
    "another core.json": (lambda path: flipped(path, CORE_JSON), SignatureError),
    "another tokenizer": (lambda path: flipped(path, tokenizer_of(path)), TamperedError),
    "no tokenizer": (lambda path: (path / tokenizer_of(path)).unlink(), MissingFileError),
    "a file too many": (lambda path: (path / "extra").write_text(""), ExtraFileError),
    "no signature": (lambda path: (path / SIGNATURE).unlink(), MissingFileError),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_it_uses_and_was_altered_is_refused(
    speaking: TinyCore, trusted: Policy, tmp_path: Path, change: str
) -> None:
    path = speaking.write(tmp_path)
    verify_text(path, trusted)
    alter, expected = CHANGES[change]
    alter(path)
    with pytest.raises(expected):
        verify_text(path, trusted)


def test_another_signer_is_refused(speaking: TinyCore, tmp_path: Path) -> None:
    with pytest.raises(UntrustedError):
        verify_text(speaking.write(tmp_path), Policy.only(scratch_key().public_bytes))


def test_templates_are_left_to_who_runs_them(speaking: TinyCore, trusted: Policy, tmp_path: Path) -> None:
    path = speaking.write(tmp_path)
    flipped(path, GRAPHS)
    verify_text(path, trusted)
    with pytest.raises(TamperedError):
        verify(path, trusted)
