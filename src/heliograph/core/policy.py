"""Which keys are trusted here. Trust lives outside the core."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


def home_folder() -> Path:
    """Where keys and trust are kept: HELIOGRAPH_HOME, else heliograph below the XDG configuration folder."""
    chosen = os.environ.get("HELIOGRAPH_HOME")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "heliograph"


@dataclass(frozen=True, slots=True)
class Policy:
    keys: Mapping[str, Ed25519PublicKey]  # by key id
    source: str  # where a key would have to be added, for the error's hint

    @classmethod
    def local(cls, home: Path | None = None) -> Policy:
        """What is trusted on this machine."""
        raise NotImplementedError

    @classmethod
    def only(cls, public_key: bytes) -> Policy:
        """Trusts one raw Ed25519 public key and nothing else."""
        raise NotImplementedError
