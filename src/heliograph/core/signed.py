"""The first steps of every verification (docs/core-format.md 8): names in the folder, the signature, core.json's bytes.

Also how a blob is read: its bytes have the digest that names it, or it is not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from heliograph.core.digest import digest
from heliograph.core.envelope import (
    Envelope,
    Statement,
    check_signatures,
    check_subject,
    decode_envelope,
    decode_statement,
    is_draft,
)
from heliograph.core.folder import CoreFolder
from heliograph.core.format import BLOBS, CORE_JSON, MAX_JSON_BYTES, MAX_SIGNATURE_BYTES, SIGNATURE
from heliograph.core.policy import Policy
from heliograph.errors import DraftError, SignatureError, TamperedError


class Signed(msgspec.Struct, frozen=True):
    """Who signed what, and the signed bytes of core.json with their SHA-256, not yet parsed."""

    statement: Statement
    draft: bool
    signers: tuple[str, ...]  # ids of the trusted keys that signed
    core_json: bytes
    digest: str


def read_signed(folder: CoreFolder, policy: Policy, accept_draft: bool = False) -> Signed:
    """Raises the CoreError that fits, before anything that the signature covers is parsed."""
    # 1. names, kinds, sizes
    folder.check_names()
    # 2. the signature
    envelope = decode_envelope(folder.read(SIGNATURE, MAX_SIGNATURE_BYTES))
    draft = is_draft(envelope)
    if draft and not accept_draft:
        raise DraftError(
            f"opening {folder.path}",
            found="a draft (M26)",
            required="a finished core",
            hint="a capture is writing it, or died: wait for it, or delete the folder and capture again",
        )
    signers = _signers(folder, policy, envelope)
    statement = decode_statement(envelope)
    # 3. core.json
    data = folder.read(CORE_JSON, MAX_JSON_BYTES)
    return Signed(statement, draft, signers, data, check_subject(statement, CORE_JSON, data))


def read_blobs(folder: CoreFolder, sizes: Mapping[str, int], names: Iterable[str]) -> dict[str, bytes]:
    """The named blobs, whose bytes have that digest."""
    blobs = {}
    for name in names:
        blobs[name] = folder.read_blob(name, sizes[name])
        check_digest(folder.path / BLOBS / name, blobs[name], name)
    return blobs


def check_digest(path: Path, data: bytes, expected: str) -> None:
    found = digest(data)
    if found != expected:
        raise TamperedError(
            f"reading {path}",
            found=f"BLAKE3 {found}",
            required=f"{expected}, as signed (M13)",
            hint="fetch the core again from where it came",
        )


def _signers(folder: CoreFolder, policy: Policy, envelope: Envelope) -> tuple[str, ...]:
    """M22. A signature that names a trusted key but is not by it was altered; other keys are unknown here."""
    signers = check_signatures(envelope, policy.keys)
    if signers:
        return signers
    hints = tuple(signature.keyid for signature in envelope.signatures)
    if not hints or any(hint in policy.keys for hint in hints):
        raise SignatureError(
            f"checking who signed {folder.path}",
            found=f"{len(hints)} signatures, none of them valid",
            required="a valid signature by a trusted key (M22)",
            hint="the signature was altered, or belongs to another core; fetch the core again",
        )
    raise policy.untrusted(str(folder.path), hints)
