"""The only maker of a VerifiedCore: one fixed order (docs/core-format.md 8), each check by its rule.

Everything is read once and kept: the bytes that were checked are the bytes that are used. Nothing outside the core's
folder is opened, and nothing in it by a name that core.json made up.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

import msgspec

from heliograph.core.catalogue import check_catalogue
from heliograph.core.columns import read_columns
from heliograph.core.encoding import decode
from heliograph.core.envelope import (
    check_subject,
)
from heliograph.core.folder import CoreFolder
from heliograph.core.format import (
    CORE_JSON,
    GRAPHS,
    MAX_GRAPHS_BYTES,
    MAX_JSON_BYTES,
    PROVENANCE_JSON,
)
from heliograph.core.image import check_image
from heliograph.core.manifest import Core, Provenance
from heliograph.core.policy import Policy
from heliograph.core.refusal import refusal
from heliograph.core.rules.content import held_in_memory
from heliograph.core.rules.meaning import check_meaning
from heliograph.core.signed import Signed, check_digest, read_blobs, read_signed
from heliograph.core.target import Machine, check_target
from heliograph.core.weights import WeightFiles


class _Checked(msgspec.Struct, frozen=True):
    """What ``verify`` found. Made there only, which makes a VerifiedCore a proof."""

    folder: CoreFolder
    signed: Signed
    core: Core
    provenance: Provenance
    columns: Mapping[str, memoryview]
    blobs: Mapping[str, bytes]


class VerifiedCore:
    """A core whose signature, manifest, templates and images were checked. Close it, or use it as a context."""

    def __init__(self, checked: _Checked) -> None:
        signed = checked.signed
        self._folder = checked.folder
        self._blobs = checked.blobs
        self.core = checked.core
        self.provenance = checked.provenance
        self.digest = signed.digest  # SHA-256 of core.json
        self.name = signed.statement.predicate.name  # as signed, whatever the folder is called
        self.sequence = signed.statement.predicate.sequence
        self.signed_at = signed.statement.predicate.signed_at
        self.draft = signed.draft
        self.signers = signed.signers  # ids of the trusted keys that signed
        self.columns = checked.columns  # the checked bytes of graphs.safetensors
        self._weights = WeightFiles(checked.folder, checked.core.weights, checked.columns["weights.chunks"])

    def blob(self, digest: str) -> bytes:
        """A checked blob: kernel image, initial content, self-test inputs, tokenizer file. KeyError for weights."""
        return self._blobs[digest]

    def open_weights(self, slice: int) -> int:
        """A read-only descriptor of a weight slice's file, opened once and owned by this object. The bytes behind it
        are unchecked; ``read_chunk`` checks."""
        return self._weights.open(slice)

    def read_chunk(self, chunk: int, into: memoryview) -> int:
        """Reads one chunk of the weights image into ``into``, checks it there, returns its size. Any thread."""
        return self._weights.read_chunk(chunk, into)

    def check_weights(self, progress: Callable[[int], None] | None = None) -> None:
        """Reads every byte of the weights; see ``verify_weights``."""
        self._weights.check_all(progress)

    def close(self) -> None:
        """Closes its files. Idempotent; what was read stays valid."""
        self._weights.close()
        self._folder.close()

    def __enter__(self) -> VerifiedCore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def verify(
    path: str | os.PathLike[str], policy: Policy, accept_draft: bool = False, machine: Machine | None = None
) -> VerifiedCore:
    """Checks everything but the weights' bytes. With ``machine`` the core must also be made for it.

    ``accept_draft`` is for the checker of a draft. Raises the CoreError that fits: TamperedError and its kinds,
    UntrustedError, DraftError, FormatError, TargetError; StorageError for the file system.
    """
    folder = CoreFolder(Path(path))
    try:
        return VerifiedCore(_check(folder, policy, accept_draft, machine))
    except BaseException:
        folder.close()
        raise


def _check(folder: CoreFolder, policy: Policy, accept_draft: bool, machine: Machine | None) -> _Checked:
    # 1. names, kinds, sizes, 2. the signature, 3. core.json
    signed = read_signed(folder, policy, accept_draft)
    core = decode(signed.core_json, Core, f"reading {folder.path / CORE_JSON}")
    check_meaning(core, signed.draft)
    folder.check_blobs({blob.digest: blob.size for blob in core.blobs})
    # 4. provenance.json
    data = folder.read(PROVENANCE_JSON, MAX_JSON_BYTES)
    check_subject(signed.statement, PROVENANCE_JSON, data)
    provenance = decode(data, Provenance, f"reading {folder.path / PROVENANCE_JSON}")
    if provenance.format != core.format:
        raise refusal(
            f"reading {folder.path / PROVENANCE_JSON}", f"format {provenance.format}", f"{core.format}", "M90"
        )
    # 5. templates, 6. images and other blobs
    columns = _templates(folder, core)
    blobs = read_blobs(folder, {blob.digest: blob.size for blob in core.blobs}, held_in_memory(core))
    for module in core.modules:
        check_image(blobs[module.blob], module.family, core.target)
    # 7. the target
    if machine is not None:
        check_target(core.target, machine)
    return _Checked(folder, signed, core, provenance, columns, blobs)


def _templates(folder: CoreFolder, core: Core) -> dict[str, memoryview]:
    size = core.graphs_file.size
    if size > MAX_GRAPHS_BYTES:
        raise refusal(f"reading {folder.path / GRAPHS}", f"{size} bytes", f"at most {MAX_GRAPHS_BYTES}", "M60")
    data = folder.read_exactly(GRAPHS, size)
    check_digest(folder.path / GRAPHS, data, core.graphs_file.digest)
    columns = read_columns(data)
    check_catalogue(core, columns)
    return columns


def verify_weights(verified: VerifiedCore, progress: Callable[[int], None] | None = None) -> None:
    """Reads every byte of the weights and checks chunk and file digests. ``progress`` gets the bytes done so far."""
    verified.check_weights(progress)
