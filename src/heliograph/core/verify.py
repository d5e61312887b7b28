"""The only maker of a VerifiedCore. One fixed order; each check cites its paragraph of docs/core-format.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from heliograph.core.manifest import Core, Provenance
from heliograph.core.policy import Policy
from heliograph.core.target import Machine


class VerifiedCore:
    """A core whose signature, manifest, templates and images were checked. Close it, or use it as a context."""

    core: Core
    provenance: Provenance
    digest: str  # SHA-256 of core.json
    name: str  # as signed
    sequence: int  # as signed
    signed_at: str  # as signed
    draft: bool
    signers: tuple[str, ...]  # key ids whose signature was checked
    columns: Mapping[str, memoryview]  # checked bytes of graphs.safetensors

    def blob(self, digest: str) -> bytes:
        """A checked blob (kernel image, initial content, tokenizer file); not for weight slices."""
        raise NotImplementedError

    def open_weights(self, slice: int) -> int:
        """A read-only descriptor of a weight slice's file; owned by this object, opened once."""
        raise NotImplementedError

    def chunk_digest(self, chunk: int) -> bytes:
        """BLAKE3 of a 4 MiB chunk of the weights image."""
        raise NotImplementedError

    def read_chunk(self, chunk: int, into: memoryview) -> int:
        """Reads one chunk of the weights image into ``into``, checks it there, returns its size. Any thread."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> VerifiedCore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def verify(path: Path, policy: Policy, accept_draft: bool = False, machine: Machine | None = None) -> VerifiedCore:
    """Checks everything but the weights' bytes, in the order of design.md 7. With ``machine`` the target as well."""
    raise NotImplementedError


def verify_weights(verified: VerifiedCore, progress: Callable[[int], None] | None = None) -> None:
    """Reads every byte of the weights and checks chunk and file digests. ``progress`` gets bytes done so far."""
    raise NotImplementedError
