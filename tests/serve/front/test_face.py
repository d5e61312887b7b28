"""What the front reads of a core is checked by the front; what it does not use is left to the worker."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from served import EOS, TEMPLATE, VOCABULARY, byte_level

from heliograph.core.format import BLOBS, CORE_JSON, GRAPHS
from heliograph.core.sign import development_key, scratch_key
from heliograph.errors import SignatureError, TamperedError, UntrustedError, UsageError
from heliograph.serve.front.face import load_face
from tiny_core import TinyCore, digest, tiny_core


def speaking() -> TinyCore:
    """A core with a tokenizer that works, signed by the key that is trusted here."""
    made = tiny_core(weight_bytes=64 << 10, text=True)
    tokenizer, template = byte_level().to_str().encode(), TEMPLATE.encode()
    assert made.core.text is not None
    facts = msgspec.structs.replace(
        made.core.text, tokenizer=digest(tokenizer), chat_template=digest(template), vocabulary=VOCABULARY, eos=(EOS,)
    )
    core = msgspec.structs.replace(made.core, text=facts)
    blobs = made.blobs | {facts.tokenizer: tokenizer, facts.chat_template: template}
    return replace(made, core=core, blobs=blobs, key=development_key())


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_core_shows_its_signed_name_its_digest_and_its_text(tmp_path: Path) -> None:
    made = speaking()
    path = made.write(tmp_path)
    renamed = path.rename(tmp_path / "other")
    face = load_face(renamed)
    core_digest = hashlib.sha256((renamed / CORE_JSON).read_bytes()).hexdigest()
    assert (face.name, face.digest, face.facts) == (made.name, core_digest, made.core.text)
    assert face.text.decode(face.text.encode("héllo")) == "héllo"


@pytest.mark.parametrize(("which", "error"), [("core", SignatureError), ("tokenizer", TamperedError)])
def test_what_it_reads_and_was_altered_is_refused(tmp_path: Path, which: str, error: type[Exception]) -> None:
    path = speaking().write(tmp_path)
    facts = load_face(path).facts
    flip(path / {"core": CORE_JSON, "tokenizer": f"{BLOBS}/{facts.tokenizer}"}[which])
    with pytest.raises(error):
        load_face(path)


def test_graphs_are_left_to_the_worker(tmp_path: Path) -> None:
    path = speaking().write(tmp_path)
    flip(path / GRAPHS)
    assert load_face(path).name == speaking().name


def test_a_core_by_an_unknown_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UntrustedError):
        load_face(replace(speaking(), key=scratch_key()).write(tmp_path))


def test_a_core_of_no_language_model_is_refused(tmp_path: Path) -> None:
    made = replace(tiny_core(weight_bytes=64 << 10), key=development_key())
    with pytest.raises(UsageError):
        load_face(made.write(tmp_path))
