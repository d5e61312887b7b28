"""What a process that only speaks for a core needs of it, and may read without reading the rest.

The signature over core.json and the blobs of the text are checked. That the rest of core.json means something, and
templates, images and weights, is for the process that runs the core; the two compare digests.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from heliograph.core.folder import CoreFolder
from heliograph.core.format import CORE_JSON, FORMAT
from heliograph.core.manifest import Blob, Count, Text
from heliograph.core.policy import Policy
from heliograph.core.refusal import refusal
from heliograph.core.signed import Signed, read_blobs, read_signed


class CoreText(msgspec.Struct, frozen=True):
    """The part of core.json that clients are told of. The decoder skips the other fields, which costs a tenth."""

    format: Count
    numerics: str
    blobs: tuple[Blob, ...]
    text: Text | None


class VerifiedText:
    """A core's name, digest and text. Made by :func:`verify_text` only."""

    def __init__(self, signed: Signed, core: CoreText, blobs: Mapping[str, bytes]) -> None:
        self._blobs = blobs
        self.core = core
        self.digest = signed.digest  # SHA-256 of core.json
        self.name = signed.statement.predicate.name

    def blob(self, digest: str) -> bytes:
        """The tokenizer or the chat template; KeyError for any other."""
        return self._blobs[digest]


def verify_text(path: Path, policy: Policy) -> VerifiedText:
    """Raises what ``core.verify.verify`` would for what is read here."""
    folder = CoreFolder(path)
    try:
        signed = read_signed(folder, policy)
        doing = f"reading {folder.path / CORE_JSON}"
        try:
            core = msgspec.json.decode(signed.core_json, type=CoreText)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise refusal(doing, str(error), "the fields and types of the format", "M4") from error
        if core.format != FORMAT:
            raise refusal(doing, f"format {core.format}", f"format {FORMAT}, which this version reads", "M5")
        text = core.text
        names = {text.tokenizer, text.chat_template} if text else set()
        sizes = {blob.digest: blob.size for blob in core.blobs}
        if not names <= sizes.keys():
            raise refusal(doing, "a text whose blobs are not listed", "every blob listed", "M51")
        return VerifiedText(signed, core, read_blobs(folder, sizes, names))
    finally:
        folder.close()
