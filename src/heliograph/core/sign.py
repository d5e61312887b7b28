"""The keys that sign: a scratch key for a draft, this machine's development key for its cores.

The development key lies in ``keys/development.pem`` below the home folder.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from heliograph.core.policy import MAX_KEY_BYTES, create_file, home_folder, key_id, trust
from heliograph.errors import StorageError, UsageError

DEVELOPMENT_KEY: Final = "keys/development.pem"


@dataclass(frozen=True, slots=True)
class SigningKey:
    """An Ed25519 key."""

    private: Ed25519PrivateKey

    @property
    def public_bytes(self) -> bytes:
        """Raw, 32 bytes."""
        return self.private.public_key().public_bytes_raw()

    @property
    def key_id(self) -> str:
        return key_id(self.private.public_key())


def scratch_key() -> SigningKey:
    """A fresh key that is kept nowhere: it signs one draft."""
    return SigningKey(Ed25519PrivateKey.generate())


def development_key(home: Path | None = None) -> SigningKey:
    """This machine's development key. The first call makes it, mode 0600, and trusts it here; later calls only read
    it, so a trust entry that was deleted stays deleted."""
    home = home or home_folder()
    path = home / DEVELOPMENT_KEY
    try:
        if path.exists():
            return _read_private(path)
        key = Ed25519PrivateKey.generate()
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        entry = trust(key.public_key(), home)  # first: a key without its entry would look like one that was distrusted
        made = create_file(path, pem, 0o600)
        if not made:
            entry.unlink()  # another process was first
            return _read_private(path)
    except OSError as error:
        raise StorageError(
            f"reading or making {path}",
            found=str(error),
            required=f"a folder {home} that can be written",
            hint="set HELIOGRAPH_HOME to a folder of yours",
        ) from error
    return SigningKey(key)


def _read_private(path: Path) -> SigningKey:
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        data = file.read(MAX_KEY_BYTES)
    if mode & 0o077:
        raise UsageError(
            "reading the development key",
            found=f"{path} with mode {mode & 0o777:o}",
            required="mode 600: nobody else may read a private key",
            hint=f"chmod 600 {path}, or delete it (and its trust entry) if somebody may have read it",
        )
    try:
        key = load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UsageError(
            "reading the development key",
            found=f"{path}: {error}",
            required="an Ed25519 private key in PEM without password",
            hint=f"put {path} right, or delete it: the next capture makes a new key",
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(
            "reading the development key",
            found=f"{path}: a key of another kind",
            required="an Ed25519 private key",
            hint=f"delete {path}: the next capture makes a new key",
        )
    return SigningKey(key)
