"""The error of a broken rule of docs/core-format.md."""

from __future__ import annotations

from heliograph.errors import FormatError


def refusal(doing: str, found: str, required: str, rule: str) -> FormatError:
    """``rule`` is the id in docs/core-format.md; it ends ``required``, where FormatError.rule finds it."""
    return FormatError(
        doing,
        found=found,
        required=f"{required} ({rule})",
        hint="the core was not written by this version of Heliograph, or was changed; export it again",
    )
