"""Drafts and publication: a core is written whole or not at all (docs/core-format.md 7)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

import msgspec
from blake3 import blake3

from heliograph.core.digest import digest
from heliograph.core.encoding import encode
from heliograph.core.envelope import Predicate, sign_core
from heliograph.core.format import BLOBS, CORE_JSON, GRAPHS, PROVENANCE_JSON, SIGNATURE
from heliograph.core.layout import slice_bytes
from heliograph.core.manifest import Blob, Core, Digest, Provenance, Slice
from heliograph.core.names import automatic_names, check_name
from heliograph.core.policy import Policy
from heliograph.core.provenance import check_private
from heliograph.core.rules.content import blob_references
from heliograph.core.sign import SigningKey
from heliograph.core.slices import Bytes, SliceWriter, chunks
from heliograph.core.storage import replace_file, storing, sync_folder, write_file
from heliograph.core.store import Store
from heliograph.core.verify import verify
from heliograph.core.workplace import Workplace
from heliograph.errors import CoreExistsError


class DraftWriter:
    """A draft in the cores folder ``folder``: a locked temporary folder beside the cores, owned by this object.

    As a context it abandons the draft on the way out unless it was published. Not for several threads.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._store = Store(folder)
        self._blobs: dict[Digest, int] = {}
        with storing(f"making a draft in {folder}"):
            self._place = Workplace(folder, self._store)
        self.path = self._place.path

    def blobs(self) -> dict[Digest, int]:
        """Digest and size of everything stored so far."""
        return dict(self._blobs)

    def put_blob(self, data: Bytes) -> Digest:
        """Stores a blob under its BLAKE3, synced, shared by content with the other cores of the folder."""
        view = memoryview(data).cast("B")
        name = digest(view)
        target = self.path / BLOBS / name
        with storing(f"writing a blob of {len(view)} bytes"):
            if name not in self._blobs and not self._store.share(name, len(view), target):
                file = self.path / "new-blob"
                write_file(file, view)
                self._store.adopt(file, name, len(view), target)
        self._blobs[name] = len(view)
        return name

    def read_blob(self, name: Digest) -> bytes:
        """The content of a blob that was stored here."""
        with storing("reading a blob"):
            return (self.path / BLOBS / name).read_bytes()

    def put_weights(self, image: Iterable[Bytes], cap: int) -> tuple[tuple[Slice, ...], tuple[bytes, ...]]:
        """Stores the weights image (its bytes in order, in pieces of any size) as slices of at most ``cap`` bytes.

        Returns the slices and the BLAKE3 of each 4 MiB chunk of the image. Memory: one chunk.
        """
        writer = SliceWriter(self.path, self.path / BLOBS, self._store, slice_bytes(cap))
        digests = []
        with storing("writing the weights"):
            try:
                for chunk in chunks(image):
                    digests.append(blake3(chunk).digest())
                    writer.append(chunk)
                slices = writer.finish()
            finally:
                writer.close()
        self._blobs.update((part.blob, part.size) for part in slices)
        return slices, tuple(digests)

    def finish(self, core: Core, provenance: Provenance, graphs: bytes, key: SigningKey) -> Draft:
        """Writes the files of a draft, signed as a draft by ``key`` (a scratch key). May be called again, with more
        blobs and another core.

        ``graphs_file`` and ``blobs`` of ``core`` are filled in here; give any value.
        """
        core = self._complete(core, graphs)
        predicate = Predicate(name="draft", sequence=0, signed_at=utc_text(datetime.now(UTC)))
        with storing(f"writing the draft {self.path}"):
            self._write(core, provenance, graphs)
            signature = sign_core(encode(core), encode(provenance), key, predicate, draft=True)
            replace_file(self.path / SIGNATURE, signature)
            sync_folder(self.path / BLOBS)
            sync_folder(self.path)
        return Draft(self.path, core, self)

    def _complete(self, core: Core, graphs: bytes) -> Core:
        """``core`` with the digests of everything that was written."""
        file = Blob(digest=digest(graphs), size=len(graphs))
        used = sorted(blob_references(core))
        blobs = tuple(Blob(digest=name, size=self._blobs[name]) for name in used)
        return msgspec.structs.replace(core, graphs_file=file, blobs=blobs)

    def _write(self, core: Core, provenance: Provenance, graphs: bytes) -> None:
        """Everything but the signature. Blobs that nothing refers to go."""
        replace_file(self.path / CORE_JSON, encode(core))
        replace_file(self.path / PROVENANCE_JSON, encode(provenance))
        replace_file(self.path / GRAPHS, graphs)
        unused = self._blobs.keys() - {blob.digest for blob in core.blobs}
        for name in unused:
            (self.path / BLOBS / name).unlink()
            del self._blobs[name]
        if unused:
            self._store.release(unused)

    def _publish(
        self, core: Core, provenance: Provenance, graphs: bytes, key: SigningKey, name: str | None, now: datetime
    ) -> Path:
        names = automatic_names(core.target.arch, core.target.ranks, now) if name is None else iter([check_name(name)])
        core = self._complete(core, graphs)
        check_private(provenance)
        with storing(f"publishing {self.path}"):
            self._write(core, provenance, graphs)
            sync_folder(self.path / BLOBS)
            for candidate in names:
                if os.path.lexists(self.folder / candidate):
                    continue
                predicate = Predicate(name=candidate, sequence=int(now.timestamp()), signed_at=utc_text(now))
                replace_file(self.path / SIGNATURE, sign_core(encode(core), encode(provenance), key, predicate))
                sync_folder(self.path)
                verify(self.path, Policy.only(key.public_bytes)).close()  # nobody publishes what he would refuse
                try:
                    return self._place.publish(candidate)
                except FileExistsError:
                    continue
        raise CoreExistsError(
            f"publishing the core {name}",
            found=f"{self.folder / str(name)}",
            required="a name that is free",
            hint="choose another name, or leave it out: then the time is part of it",
        )

    def abandon(self) -> None:
        """Removes everything that this writer made. Idempotent; does nothing after publication."""
        with storing(f"removing the draft {self.path}"):
            self._place.remove()

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
    """Signs and renames into place, all or nothing; the draft is abandoned when it fails. Returns the core's folder.
    A StorageError after the rename says that the core is there and may not be durable.

    ``core`` may differ from the draft's (findings merged); ``graphs_file`` and ``blobs`` are filled in again, blobs
    that nothing refers to are removed. Without a name: ``{arch}-tp{ranks}-{YYYYMMDDhhmm}`` in UTC, with -2, -3 ... if
    it is taken. CoreExistsError if ``name`` was given and is taken.
    """
    try:
        return draft.writer._publish(core, provenance, graphs, key, name, now or datetime.now(UTC))
    except BaseException:
        draft.writer.abandon()
        raise


def utc_text(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
