"""core.sig: a table of bad signatures, each with the one thing wrong; and what a signature does not depend on."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import pytest

import independent_reader
from heliograph.core.encoding import encode
from heliograph.core.envelope import Predicate, pre_authentication, sign_core
from heliograph.core.format import DRAFT_PAYLOAD_TYPE, DRAFT_PREDICATE_TYPE
from heliograph.core.policy import Policy
from heliograph.core.sign import SigningKey, scratch_key
from heliograph.core.verify import verify
from heliograph.errors import CoreError, DraftError, FormatError, SignatureError, UntrustedError
from tiny_core import NAME, TinyCore, tiny_core

Envelope = dict[str, Any]
Statement = dict[str, Any]
STRANGER = scratch_key()


def dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def signed(
    statement: Statement | bytes, key: SigningKey, payload_type: str = "application/vnd.in-toto+json"
) -> Envelope:
    """A well signed envelope around any payload."""
    payload = statement if isinstance(statement, bytes) else dump(statement)
    signature = key.private.sign(pre_authentication(payload_type, payload))
    return {
        "payload": b64encode(payload).decode(),
        "payloadType": payload_type,
        "signatures": [{"keyid": key.key_id, "sig": b64encode(signature).decode()}],
    }


def statement_of(files: dict[str, bytes]) -> Statement:
    return json.loads(b64decode(json.loads(files["core.sig"])["payload"]))


def set_at(value: Any, path: str, new: Any) -> Any:
    """A copy of ``value`` with another value at a path; None takes it away."""
    value = json.loads(json.dumps(value))
    *way, last = path.split("/")
    place = value
    for part in way:
        place = place[int(part) if isinstance(place, list) else part]
    if new is None:
        del place[last]
    else:
        place[int(last) if isinstance(place, list) else last] = new(place[last]) if callable(new) else new
    return value


def flip(text: str) -> str:
    data = bytearray(b64decode(text))
    data[0] ^= 1
    return b64encode(data).decode()


# What is wrong with the envelope itself: the error, its rule (of a FormatError), and the change.
BAD_ENVELOPES: dict[str, tuple[type[CoreError], str, str, Any]] = {
    "a flipped bit in the signature": (SignatureError, "", "signatures/0/sig", flip),
    "a flipped bit in the payload": (SignatureError, "", "payload", flip),
    "another payload type": (FormatError, "M21", "payloadType", "application/json"),
    "the payload type in another case": (FormatError, "M21", "payloadType", "application/vnd.in-toto+JSON"),
    "no signatures": (SignatureError, "", "signatures", []),
    "an empty signature": (SignatureError, "", "signatures/0/sig", ""),
    "a signature cut short": (SignatureError, "", "signatures/0/sig", lambda s: b64encode(b64decode(s)[:63]).decode()),
    "a byte more": (SignatureError, "", "signatures/0/sig", lambda s: b64encode(b64decode(s) + b"\0").decode()),
    "a signature of zeros": (SignatureError, "", "signatures/0/sig", b64encode(bytes(64)).decode()),
    "base64 without padding": (FormatError, "M20", "signatures/0/sig", lambda s: s.rstrip("=")),
    "base64 with loose bits": (FormatError, "M20", "signatures/0/sig", lambda s: s[:-3] + chr(ord(s[-3]) + 1) + "=="),
    "base64 for addresses": (FormatError, "M20", "payload", lambda s: "-_" + s[2:]),
    "base64 with white space": (FormatError, "M20", "payload", lambda s: s + "\n"),
    "a field more": (FormatError, "M20", "x", 1),
    "no payload type": (FormatError, "M20", "payloadType", None),
    "a signature without key id": (FormatError, "M20", "signatures/0/keyid", None),
    "signatures that are no list": (FormatError, "M20", "signatures", {}),
    "an empty payload": (SignatureError, "", "payload", ""),
}


def verdict(folder: Path, policy: Policy) -> CoreError | None:
    """The error, if any; the independent reader must refuse and accept the same."""
    keys = [key.public_bytes_raw() for key in policy.keys.values()]
    other: independent_reader.Refused | None = None
    try:
        independent_reader.read(folder, keys)
    except independent_reader.Refused as error:
        other = error
    error = product_verdict(folder, policy)
    assert (error is None) == (other is None)
    if isinstance(error, FormatError) and other is not None:
        assert other.rule == error.rule or {other.rule, error.rule} <= {"M3", "M4", "M20"}
    return error


def product_verdict(folder: Path, policy: Policy) -> CoreError | None:
    try:
        verify(folder, policy).close()
    except CoreError as error:
        return error
    return None


def write(tiny: TinyCore, folder: Path, envelope: Envelope | bytes | None = None) -> Path:
    path = tiny.write(folder)
    if envelope is not None:
        (path / "core.sig").write_bytes(envelope if isinstance(envelope, bytes) else dump(envelope))
    return path


def test_the_signed_core_is_accepted(tiny: TinyCore, policy: Policy, tmp_path: Path) -> None:
    """M20 to M25: the twin of every refusal here."""
    assert verdict(write(tiny, tmp_path), policy) is None
    again = signed(statement_of(tiny.files()), tiny.key)
    assert verdict(write(tiny, tmp_path / "again", again), policy) is None


@pytest.mark.parametrize("name", BAD_ENVELOPES)
def test_a_bad_envelope_is_refused(tiny: TinyCore, policy: Policy, tmp_path: Path, name: str) -> None:
    """M20, M21, M22"""
    kind, rule, path, change = BAD_ENVELOPES[name]
    envelope = set_at(json.loads(tiny.files()["core.sig"]), path, change)
    error = verdict(write(tiny, tmp_path, envelope), policy)
    assert type(error) is kind
    assert not isinstance(error, FormatError) or error.rule == rule


# What a trusted key may have signed that is still no core: the rule and the change of the statement.
BAD_STATEMENTS: dict[str, tuple[str, str, Any]] = {
    "another statement type": ("M23", "_type", "https://in-toto.io/Statement/v0.1"),
    "another predicate type": ("M23", "predicateType", "https://slsa.dev/provenance/v1"),
    "a later predicate": ("M23", "predicateType", "urn:x-heliograph:core:v1"),
    "a draft's predicate": ("M23", "predicateType", DRAFT_PREDICATE_TYPE),
    "no subject": ("M24", "subject", []),
    "one subject": ("M24", "subject", lambda s: s[:1]),
    "a subject more": ("M24", "subject", lambda s: [*s, {"name": "x", "digest": s[0]["digest"]}]),
    "a subject twice": ("M24", "subject", lambda s: [s[0], s[0]]),
    "subjects in another order": ("M24", "subject", lambda s: s[::-1]),
    "a subject elsewhere": ("M24", "subject/0/name", "../core.json"),
    "a subject in another case": ("M24", "subject/0/name", "Core.json"),
    "a digest of another kind": ("M24", "subject/0/digest", lambda d: {"sha512": d["sha256"]}),
    "two digests": ("M24", "subject/0/digest", lambda d: d | {"sha1": d["sha256"]}),
    "no digest": ("M24", "subject/0/digest", {}),
    "an upper-case digest": ("M4", "subject/0/digest/sha256", lambda d: d.upper().replace("0", "A")),
    "a digest cut short": ("M4", "subject/0/digest/sha256", lambda d: d[:40]),
    "a name that is a path": ("M25", "predicate/name", "a/b"),
    "a name that leads up": ("M25", "predicate/name", ".."),
    "a hidden name": ("M25", "predicate/name", ".core"),
    "an empty name": ("M25", "predicate/name", ""),
    "a name with a line end": ("M25", "predicate/name", NAME + "\n"),
    "a name of 129 characters": ("M25", "predicate/name", "a" * 129),
    "a name in other letters": ("M25", "predicate/name", "tiny-\u0442p1"),
    "a local time": ("M25", "predicate/signed_at", "2026-11-30T09:00:00+01:00"),
    "a time in other digits": ("M25", "predicate/signed_at", "\u0662026-11-30T09:00:00Z"),
    "no time": ("M25", "predicate/signed_at", ""),
    "a negative sequence": ("M4", "predicate/sequence", -1),
    "a sequence beyond 53 bits": ("M4", "predicate/sequence", 1 << 53),
    "no sequence": ("M4", "predicate/sequence", None),
    "a field more": ("M4", "predicate/x", 1),
    "no predicate": ("M4", "predicate", None),
}


@pytest.mark.parametrize("name", BAD_STATEMENTS)
def test_a_well_signed_statement_about_something_else_is_refused(
    tiny: TinyCore, policy: Policy, tmp_path: Path, name: str
) -> None:
    """M23, M24, M25"""
    rule, path, change = BAD_STATEMENTS[name]
    statement = set_at(statement_of(tiny.files()), path, change)
    error = verdict(write(tiny, tmp_path, signed(statement, tiny.key)), policy)
    assert isinstance(error, FormatError)
    assert error.rule == rule


@pytest.mark.parametrize("payload", [b"", b"{}", b"[]", b"null", b"\xff", b'{"_type":1}', b"[" * 1000])
def test_a_well_signed_payload_that_is_no_statement_is_refused(
    tiny: TinyCore, policy: Policy, tmp_path: Path, payload: bytes
) -> None:
    """M23"""
    error = verdict(write(tiny, tmp_path, signed(payload, tiny.key)), policy)
    assert isinstance(error, FormatError)


def test_a_statement_in_another_form_is_refused(tiny: TinyCore, policy: Policy, tmp_path: Path) -> None:
    """M3: what was signed is one byte string, not one meaning."""
    pretty = json.dumps(statement_of(tiny.files()), indent=1).encode()
    error = verdict(write(tiny, tmp_path, signed(pretty, tiny.key)), policy)
    assert isinstance(error, FormatError)
    assert error.rule == "M3"


@pytest.mark.parametrize("other", ["core.json", "provenance.json"])
def test_the_signature_of_another_core_is_refused(tiny: TinyCore, policy: Policy, tmp_path: Path, other: str) -> None:
    """M24"""
    files = tiny.files()
    statement = statement_of(files)
    number = ["core.json", "provenance.json"].index(other)
    statement["subject"][number]["digest"]["sha256"] = "0a" * 32
    error = verdict(write(tiny, tmp_path, signed(statement, tiny.key)), policy)
    assert type(error) is SignatureError
    assert "0a" * 32 in error.required


def test_a_signature_over_the_bare_payload_is_refused(tiny: TinyCore, policy: Policy, tmp_path: Path) -> None:
    """M22: DSSE's encoding binds the type."""
    envelope = signed(statement_of(tiny.files()), tiny.key)
    bare = tiny.key.private.sign(b64decode(envelope["payload"]))
    envelope["signatures"][0]["sig"] = b64encode(bare).decode()
    assert type(verdict(write(tiny, tmp_path, envelope), policy)) is SignatureError


def test_a_signature_for_another_payload_type_is_refused(tiny: TinyCore, policy: Policy, tmp_path: Path) -> None:
    """M22"""
    envelope = signed(statement_of(tiny.files()), tiny.key, "application/vnd.other+json")
    envelope["payloadType"] = "application/vnd.in-toto+json"
    assert type(verdict(write(tiny, tmp_path, envelope), policy)) is SignatureError


def test_a_core_by_an_unknown_key_is_refused_and_the_error_names_the_key(
    tiny: TinyCore, policy: Policy, tmp_path: Path
) -> None:
    """M22"""
    envelope = signed(statement_of(tiny.files()), STRANGER)
    error = verdict(write(tiny, tmp_path, envelope), policy)
    assert type(error) is UntrustedError
    assert STRANGER.key_id in error.found
    assert verdict(write(tiny, tmp_path / "twin", envelope), Policy.only(STRANGER.public_bytes)) is None


@pytest.mark.parametrize("hint", ["", "0" * 64, STRANGER.key_id, "my laptop"])
def test_a_key_id_decides_nothing(tiny: TinyCore, policy: Policy, tmp_path: Path, hint: str) -> None:
    """M22: a trusted key's signature counts whatever its hint, and a trusted hint does not make a signature good."""
    envelope = json.loads(tiny.files()["core.sig"])
    envelope["signatures"][0]["keyid"] = hint
    path = write(tiny, tmp_path, envelope)
    assert verdict(path, policy) is None
    with verify(path, policy) as verified:
        assert verified.signers == (tiny.key.key_id,)
    forged = signed(statement_of(tiny.files()), STRANGER)
    forged["signatures"][0]["keyid"] = tiny.key.key_id
    assert type(verdict(write(tiny, tmp_path / "forged", forged), policy)) is SignatureError


def test_of_several_signatures_one_by_a_trusted_key_is_enough(tiny: TinyCore, policy: Policy, tmp_path: Path) -> None:
    """M22"""
    statement = statement_of(tiny.files())
    mine, strange = signed(statement, tiny.key), signed(statement, STRANGER)
    for number, order in enumerate(([strange, mine], [mine, strange])):
        both = mine | {"signatures": [part["signatures"][0] for part in order]}
        path = write(tiny, tmp_path / str(number), both)
        assert verdict(path, policy) is None
        with verify(path, policy) as verified:
            assert verified.signers == (tiny.key.key_id,)
    with verify(path, Policy({**policy.keys, **Policy.only(STRANGER.public_bytes).keys}, None)) as verified:
        assert verified.signers == tuple(sorted([tiny.key.key_id, STRANGER.key_id]))


def test_two_signatures_by_one_key_count_once(tiny: TinyCore, policy: Policy, tmp_path: Path) -> None:
    """M22"""
    envelope = signed(statement_of(tiny.files()), tiny.key)
    envelope["signatures"] *= 2
    with verify(write(tiny, tmp_path, envelope), policy) as verified:
        assert verified.signers == (tiny.key.key_id,)


def test_a_draft_is_refused_by_everybody_but_its_checker(tiny: TinyCore, policy: Policy, tmp_path: Path) -> None:
    """M26"""
    files = tiny.files()
    predicate = Predicate(name="draft", sequence=0, signed_at="2026-11-30T09:00:00Z")
    draft = sign_core(files["core.json"], files["provenance.json"], tiny.key, predicate, draft=True)
    path = write(tiny, tmp_path, draft)
    assert type(verdict(path, policy)) is DraftError
    with verify(path, policy, accept_draft=True) as verified:
        assert verified.draft
    with verify(write(tiny, tmp_path / "core"), policy, accept_draft=True) as verified:
        assert not verified.draft


def test_a_draft_cannot_be_passed_off_as_a_core(tiny: TinyCore, policy: Policy, tmp_path: Path) -> None:
    """M22, M23, M26"""
    files = tiny.files()
    predicate = Predicate(name="draft", sequence=0, signed_at="2026-11-30T09:00:00Z")
    draft = json.loads(sign_core(files["core.json"], files["provenance.json"], tiny.key, predicate, draft=True))
    renamed = draft | {"payloadType": "application/vnd.in-toto+json"}
    assert type(verdict(write(tiny, tmp_path / "a", renamed), policy)) is SignatureError
    signed_again = signed(b64decode(draft["payload"]), tiny.key)
    error = verdict(write(tiny, tmp_path / "b", signed_again), policy)
    assert isinstance(error, FormatError)
    assert error.rule == "M23"
    as_draft = signed(statement_of(files), tiny.key, DRAFT_PAYLOAD_TYPE)
    with pytest.raises(FormatError) as caught:
        verify(write(tiny, tmp_path / "c", as_draft), policy, accept_draft=True)
    assert caught.value.rule == "M23"


def test_the_signature_is_checked_before_anything_it_covers_is_parsed(
    tiny: TinyCore, policy: Policy, tmp_path: Path
) -> None:
    """M22: neither the payload nor core.json of a stranger reaches a parser."""
    garbage = signed(b"[" * 100_000, STRANGER)
    path = write(tiny, tmp_path, garbage)
    (path / "core.json").write_bytes(b"[" * 100_000)
    with pytest.raises(UntrustedError):
        verify(path, policy)


def test_a_core_sig_over_the_limit_is_refused(tiny: TinyCore, policy: Policy, tmp_path: Path) -> None:
    """M1"""
    path = write(tiny, tmp_path, b"x" * ((1 << 20) + 1))
    with pytest.raises(FormatError) as error:
        verify(path, policy)
    assert error.value.rule == "M1"


def test_the_name_is_the_signed_one_whatever_the_folder_is_called(
    tiny: TinyCore, policy: Policy, tmp_path: Path
) -> None:
    """M25"""
    path = tiny.write(tmp_path).rename(tmp_path / "other")
    with verify(path, policy) as verified:
        assert verified.name == NAME
        assert verified.sequence == 1796029200


def test_equal_cores_get_equal_signatures(tiny: TinyCore) -> None:
    """M92: Ed25519 is deterministic."""
    again = tiny_core(weight_bytes=64 << 10)
    again.key = tiny.key
    assert again.files() == tiny.files()
    assert encode(json.loads(tiny.files()["core.sig"])) == tiny.files()["core.sig"]
