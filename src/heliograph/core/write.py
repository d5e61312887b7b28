"""Drafts and publication: a core is written whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType

from heliograph.core.manifest import Core, Digest, Provenance, Slice
from heliograph.core.sign import SigningKey

Bytes = bytes | bytearray | memoryview


class DraftWriter:
    """A draft in ``folder`` (the cores folder): a locked temporary folder beside the cores.

    As a context it abandons the draft on the way out unless it was published.
    """

    def __init__(self, folder: Path) -> None:
        raise NotImplementedError

    path: Path  # the draft's folder

    def put_blob(self, data: Bytes) -> Digest:
        """Stores a blob under its BLAKE3, synced, shared by content with the other cores of the folder."""
        raise NotImplementedError

    def put_weights(self, image: Iterable[Bytes], cap: int) -> tuple[tuple[Slice, ...], tuple[bytes, ...]]:
        """Stores the weights image (its bytes in order, in pieces of any size) as slices of at most ``cap`` bytes.

        Returns the slices and the BLAKE3 of each 4 MiB chunk of the image.
        """
        raise NotImplementedError

    def blobs(self) -> dict[Digest, int]:
        """Digest and size of everything stored so far."""
        raise NotImplementedError

    def finish(self, core: Core, provenance: Provenance, graphs: bytes, key: SigningKey) -> Draft:
        """Writes the files of a draft, signed as a draft by ``key`` (a scratch key). May be called again.

        ``core.graphs_file`` and ``core.blobs`` are filled in here; give any value.
        """
        raise NotImplementedError

    def abandon(self) -> None:
        """Removes everything that this writer made. Idempotent; does nothing after publication."""
        raise NotImplementedError

    def __enter__(self) -> DraftWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.abandon()


@dataclass(frozen=True, slots=True)
class Draft:
    path: Path
    core: Core  # with graphs_file and blobs as written
    writer: DraftWriter


def publish(
    draft: Draft,
    core: Core,
    provenance: Provenance,
    graphs: bytes,
    key: SigningKey,
    name: str | None = None,
    now: datetime | None = None,
) -> Path:
    """Signs and renames into place, all or nothing; the draft is abandoned when it fails.

    ``core`` may differ from the draft's (findings merged); ``graphs_file`` and ``blobs`` are filled in again, blobs
    that nothing refers to are removed. Without a name: ``{arch}-tp{ranks}-{YYYYMMDDhhmm}``, with -2, -3 ... if taken.
    CoreExistsError if ``name`` was given and is taken.
    """
    raise NotImplementedError
