"""Keys, the DSSE envelope, and the statement that a signature is about."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


@dataclass(frozen=True, slots=True)
class SigningKey:
    """An Ed25519 key. ``key_id``: SHA-256 of its DER SubjectPublicKeyInfo, hexadecimal."""

    private: Ed25519PrivateKey
    key_id: str
    public_bytes: bytes  # raw, 32 bytes

    def sign(self, message: bytes) -> bytes:
        return self.private.sign(message)


def scratch_key() -> SigningKey:
    """A fresh key that is kept nowhere: signs drafts."""
    raise NotImplementedError


def development_key(home: Path | None = None) -> SigningKey:
    """This machine's development key; the first call makes it (mode 0600) and trusts it here."""
    raise NotImplementedError
