"""What a record must not tell (M91): absolute paths, and the names of the user and the host that made it."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Iterator
from typing import Final

import msgspec

from heliograph.core.manifest import Provenance
from heliograph.core.refusal import refusal

# A slash that begins a path: not behind a word, a dot or another slash ("bf16/f32", "../x", "https://"), but behind
# a one-letter option ("-I/usr/include") or in a file URL.
_PATH: Final = re.compile(r"(?:(?<![\w./~+\-<])|(?<![\w-])-[A-Za-z]|\bfile://)/[\w.~-]")
_FREE_TEXT: Final = frozenset({"command", "environment", "tuning_log", "findings"})
_SHORTEST_NAME: Final = 3  # shorter user and host names are parts of ordinary words


def check_private(provenance: Provenance, names: tuple[str, ...] | None = None) -> None:
    """FormatError (M91) naming the text that tells too much. ``names``: by default this user's and this host's.

    Names are looked for where text of the user's gets in; elsewhere ("ubuntu" among the versions) they are words.
    """
    forbidden = own_names() if names is None else names
    for field, value in msgspec.to_builtins(provenance).items():
        for text in texts(value):
            if tells_path(text) or (field in _FREE_TEXT and tells_name(text, forbidden)):
                raise refusal(
                    f"checking provenance.json, {field}", repr(text), "no absolute path, user name or host name", "M91"
                )


def tells_path(text: str) -> bool:
    """Whether an absolute path is in it."""
    return _PATH.search(text) is not None


def tells_name(text: str, names: tuple[str, ...]) -> bool:
    """Whether one of the names is in it, as a word."""
    return any(re.search(rf"\b{re.escape(name)}\b", text) for name in names)


def own_names() -> tuple[str, ...]:
    """The names of this user and this host that are long enough to be told from ordinary words."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        user = ""
    host = os.uname().nodename
    ordinary = {"root", "user", "localhost", "host", "build", "runner"}
    return tuple(
        name for name in (user, host, host.partition(".")[0]) if len(name) >= _SHORTEST_NAME and name not in ordinary
    )


def texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from texts(part)
