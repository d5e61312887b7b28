"""Which keys are trusted here. Trust lives outside the core.

Below the home folder, ``trust/<key id>.pem`` is a public key that is trusted: deleting the file ends the trust.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from heliograph.errors import StorageError, UntrustedError, UsageError

TRUST: Final = "trust"
MAX_KEY_BYTES: Final = 1 << 16
# RFC 8410: an Ed25519 SubjectPublicKeyInfo is these bytes and the key. Read and written here, since cryptography's
# module for it brings every other kind of key along and takes 10 ms of a server's start.
_DER_START: Final = bytes.fromhex("302a300506032b6570032100")
_PEM_FIRST, _PEM_LAST = "-----BEGIN PUBLIC KEY-----", "-----END PUBLIC KEY-----"


def key_id(key: Ed25519PublicKey) -> str:
    """SHA-256 of the DER SubjectPublicKeyInfo: ``openssl pkey -pubin -outform DER | sha256sum``."""
    return sha256(_DER_START + key.public_bytes_raw()).hexdigest()


def home_folder() -> Path:
    """Where keys and trust are kept: HELIOGRAPH_HOME, else heliograph below the XDG configuration folder.

    StorageError if neither is set and this user has no home folder.
    """
    chosen = os.environ.get("HELIOGRAPH_HOME")
    if chosen:
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "heliograph"
    except RuntimeError as error:
        raise StorageError(
            "looking for the folder of keys and trust",
            found="no HOME, and no home folder of this user",
            required="a folder of this user",
            hint="set HELIOGRAPH_HOME to a folder of yours",
        ) from error


class Policy(msgspec.Struct, frozen=True):
    """Trusted keys by key id, and the folder where one would be added (None: nowhere, the policy is fixed)."""

    keys: Mapping[str, Ed25519PublicKey]
    folder: Path | None

    @classmethod
    def local(cls, home: Path | None = None) -> Policy:
        """What is trusted on this machine. A trust entry that is not in order makes this fail, so nothing is trusted
        by mistake."""
        folder = (home or home_folder()) / TRUST
        keys = {}
        try:
            names = sorted(os.listdir(folder))
        except FileNotFoundError:
            names = []
        except OSError as error:
            raise _malformed(folder, str(error)) from error
        for name in names:
            key = _read_public(folder / name)
            if key is None:
                continue
            if name != f"{key_id(key)}.pem":
                raise _malformed(folder / name, f"the key {key_id(key)}")
            keys[key_id(key)] = key
        return cls(keys, folder)

    @classmethod
    def only(cls, public_key: bytes) -> Policy:
        """Trusts one raw Ed25519 public key and nothing else."""
        try:
            key = Ed25519PublicKey.from_public_bytes(public_key)
        except ValueError as error:
            raise UsageError(
                "reading a public key", found=str(error), required="32 bytes of Ed25519", hint="give the raw key"
            ) from error
        return cls({key_id(key): key}, None)

    def untrusted(self, name: str, hints: tuple[str, ...]) -> UntrustedError:
        """The error for a core that none of the keys signed."""
        signed = ", ".join(hints) or "no key"
        entry = f"~/.config/heliograph/{TRUST}/<key id>.pem"
        copy = f"copy {entry} of the machine that captured (or below its HELIOGRAPH_HOME) to {self.folder}/"
        step = f"{copy} once its id is what the signer tells you" if self.folder else "add the key to the policy in use"
        return UntrustedError(
            f"checking who signed {name}",
            found=f"a signature by {signed}",
            required="a signature by a key that is trusted on this machine",
            hint=f"if you trust the signer, {step}",
        )


def _read_public(path: Path) -> Ed25519PublicKey | None:
    """None if the file is gone: somebody ended this trust meanwhile."""
    try:
        with path.open("rb") as file:
            lines = file.read(MAX_KEY_BYTES).decode("ascii").strip().splitlines()
        if lines[:1] != [_PEM_FIRST] or lines[-1:] != [_PEM_LAST]:
            raise _malformed(path, "no public key in PEM")
        der = b64decode("".join(lines[1:-1]), validate=True)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _malformed(path, str(error)) from error
    if der[: len(_DER_START)] != _DER_START or len(der) != len(_DER_START) + 32:
        raise _malformed(path, "a key of another kind")
    return Ed25519PublicKey.from_public_bytes(der[len(_DER_START) :])


def _malformed(path: Path, found: str) -> UntrustedError:
    return UntrustedError(
        "reading which keys are trusted here",
        found=f"{path}: {found}",
        required="only files <key id>.pem, each an Ed25519 public key in PEM whose id is its name",
        hint=f"put {path} right or delete it; until then no core is trusted",
    )


def trust(key: Ed25519PublicKey, home: Path) -> Path:
    """Trusts a key on this machine."""
    path = home / TRUST / f"{key_id(key)}.pem"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    body = b64encode(_DER_START + key.public_bytes_raw()).decode("ascii")
    create_file(path, f"{_PEM_FIRST}\n{body}\n{_PEM_LAST}\n".encode("ascii"), 0o644)
    return path


def create_file(path: Path, data: bytes, mode: int) -> bool:
    """Creates a file whole or not at all; False if it was there."""
    # Not beside it: the trust folder holds keys only.
    draft = path.parent.with_name(f".{path.name}.{os.urandom(8).hex()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
    finally:
        draft.unlink()
    return True
