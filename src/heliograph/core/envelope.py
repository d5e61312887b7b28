"""core.sig: the DSSE envelope and the statement that is signed (docs/core-format.md 3)."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from heliograph.core.encoding import decode, encode
from heliograph.core.format import (
    CORE_JSON,
    DRAFT_PAYLOAD_TYPE,
    DRAFT_PREDICATE_TYPE,
    MAX_SIGNATURE_BYTES,
    PAYLOAD_TYPE,
    PREDICATE_TYPE,
    PROVENANCE_JSON,
    STATEMENT_TYPE,
)
from heliograph.core.manifest import Count, Digest, Record
from heliograph.core.names import is_core_name
from heliograph.core.refusal import refusal
from heliograph.errors import FormatError, SignatureError

if TYPE_CHECKING:  # whoever verifies does not sign, and private keys take 10 ms to import
    from heliograph.core.sign import SigningKey

_DOING: Final = "reading core.sig"
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)


class Signature(Record, frozen=True, kw_only=True):
    keyid: str  # a hint
    sig: str  # base64


class Envelope(Record, frozen=True, kw_only=True):
    payload: str  # base64 of the statement
    payload_type: str = msgspec.field(name="payloadType")
    signatures: tuple[Signature, ...]


class Subject(Record, frozen=True, kw_only=True):
    name: str
    digest: dict[str, Digest]  # {"sha256": ...}


class Predicate(Record, frozen=True, kw_only=True):
    name: str  # of the core
    sequence: Count  # grows with every core of that name
    signed_at: str  # UTC


class Statement(Record, frozen=True, kw_only=True):
    type: str = msgspec.field(name="_type")
    subject: tuple[Subject, ...]
    predicate_type: str = msgspec.field(name="predicateType")
    predicate: Predicate


def pre_authentication(payload_type: str, payload: bytes) -> bytes:
    """DSSE's encoding of type and payload: what is really signed."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def sign_core(core: bytes, provenance: bytes, key: SigningKey, predicate: Predicate, draft: bool = False) -> bytes:
    """core.sig for the bytes of core.json and provenance.json."""
    statement = Statement(
        type=STATEMENT_TYPE,
        subject=(subject(CORE_JSON, core), subject(PROVENANCE_JSON, provenance)),
        predicate_type=DRAFT_PREDICATE_TYPE if draft else PREDICATE_TYPE,
        predicate=predicate,
    )
    payload = encode(statement)
    payload_type = DRAFT_PAYLOAD_TYPE if draft else PAYLOAD_TYPE
    signature = key.private.sign(pre_authentication(payload_type, payload))
    envelope = Envelope(
        payload=b64encode(payload).decode(),
        payload_type=payload_type,
        signatures=(Signature(keyid=key.key_id, sig=b64encode(signature).decode()),),
    )
    return encode(envelope)


def subject(name: str, data: bytes) -> Subject:
    return Subject(name=name, digest={"sha256": sha256(data).hexdigest()})


def decode_envelope(data: bytes) -> Envelope:
    """FormatError unless ``data`` is one canonical envelope of a known payload type."""
    try:
        envelope = decode(data, Envelope, _DOING, MAX_SIGNATURE_BYTES)
    except FormatError as error:
        if error.rule in {"M1", "M2"}:
            raise
        raise refusal(_DOING, error.found, "one DSSE envelope in canonical JSON", "M20") from error
    if envelope.payload_type not in {PAYLOAD_TYPE, DRAFT_PAYLOAD_TYPE}:
        raise refusal(_DOING, f"payload type {envelope.payload_type!r}", PAYLOAD_TYPE, "M21")
    for text in (envelope.payload, *(signature.sig for signature in envelope.signatures)):
        from_base64(text)
    return envelope


def from_base64(text: str) -> bytes:
    try:
        data = b64decode(text, validate=True)
    except ValueError as error:
        raise refusal(_DOING, f"base64 that does not decode: {error}", "standard base64", "M20") from error
    if b64encode(data).decode() != text:
        raise refusal(_DOING, "base64 in another form", "standard base64 with padding and no loose bits", "M20")
    return data


def is_draft(envelope: Envelope) -> bool:
    return envelope.payload_type == DRAFT_PAYLOAD_TYPE


def check_signatures(envelope: Envelope, keys: Mapping[str, Ed25519PublicKey]) -> tuple[str, ...]:
    """The ids of those of ``keys`` that signed, sorted; empty if none did. Every signature is tried with every key,
    those that its hint names first: a hint decides nothing."""
    message = pre_authentication(envelope.payload_type, from_base64(envelope.payload))
    found = set()
    for signature in envelope.signatures:
        data = from_base64(signature.sig)
        for number in sorted(keys, key=lambda number: number != signature.keyid):
            if verifies(keys[number], data, message):
                found.add(number)
                break
    return tuple(sorted(found))


def verifies(key: Ed25519PublicKey, signature: bytes, message: bytes) -> bool:
    try:
        key.verify(signature, message)
    except InvalidSignature:
        return False
    return True


def decode_statement(envelope: Envelope) -> Statement:
    """The signed statement. Call it after ``check_signatures`` has found somebody."""
    statement = decode(from_base64(envelope.payload), Statement, "reading the signed statement")
    doing = "checking the signed statement"
    draft = is_draft(envelope)
    if statement.type != STATEMENT_TYPE or statement.predicate_type != (
        DRAFT_PREDICATE_TYPE if draft else PREDICATE_TYPE
    ):
        raise refusal(doing, f"{statement.type}, {statement.predicate_type}", "a statement about a core", "M23")
    if [entry.name for entry in statement.subject] != [CORE_JSON, PROVENANCE_JSON] or any(
        entry.digest.keys() != {"sha256"} for entry in statement.subject
    ):
        names = [entry.name for entry in statement.subject]
        raise refusal(doing, f"subjects {names}", f"{CORE_JSON} and {PROVENANCE_JSON}, each by SHA-256", "M24")
    predicate = statement.predicate
    if not is_core_name(predicate.name) or _TIME.fullmatch(predicate.signed_at) is None:
        raise refusal(doing, f"name {predicate.name!r}, signed at {predicate.signed_at!r}", "a name and a time", "M25")
    return statement


def check_subject(statement: Statement, name: str, data: bytes) -> str:
    """The SHA-256 of a signed file's bytes, if they are what was signed."""
    signed = next(entry.digest["sha256"] for entry in statement.subject if entry.name == name)
    found = sha256(data).hexdigest()
    if found != signed:
        raise SignatureError(
            f"checking {name} against the signature",
            found=f"SHA-256 {found}",
            required=f"{signed}, as signed",
            hint="the file was changed after it was signed, or belongs to another core; fetch the core again",
        )
    return found
