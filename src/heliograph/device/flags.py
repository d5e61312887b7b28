"""Instantiation flags: their names, which are supported, and the one source that an encoder takes them from."""

from __future__ import annotations

from enum import IntFlag
from typing import Final, Protocol

from heliograph.errors import FlagsError


class Flags(IntFlag):
    """The CUDA driver's instantiation flags, also on the host device."""

    AUTO_FREE_ON_LAUNCH = 1
    UPLOAD = 2
    DEVICE_LAUNCH = 4
    USE_NODE_PRIORITY = 8


SUPPORTED: Final = (0, 1, 8, 9)
_TYPES: Final = (int, Flags)  # not bool, which is an int as well


class HasFlags(Protocol):
    """An executable: its flags as the driver reads them back."""

    @property
    def flags(self) -> int: ...


def flag_names(value: int) -> str:
    """``UPLOAD | USE_NODE_PRIORITY (10)``, ``no flag (0)``, ``bit 5 (32)``; of what is none ``True, not an int``."""
    if type(value) not in _TYPES:
        return f"{value!r:.60}, not an int"
    if value < 0:
        return f"a negative number ({value})"
    names = [Flags(1 << bit).name or f"bit {bit}" for bit in range(value.bit_length()) if value >> bit & 1]
    return f"{' | '.join(names) or 'no flag'} ({value})"


def supported_flags(value: int, doing: str) -> int:
    """The value itself, or FlagsError with the symbolic names of what is not supported."""
    whole = type(value) in _TYPES
    if whole and value in SUPPORTED:
        return value
    refused = int(value) & ~int(Flags.AUTO_FREE_ON_LAUNCH | Flags.USE_NODE_PRIORITY) if whole and value > 0 else value
    raise FlagsError(
        doing,
        found=flag_names(refused),
        required="no flag, AUTO_FREE_ON_LAUNCH (1), USE_NODE_PRIORITY (8) or both (9)",
        hint="leave the other flags out: an executable rebuilt from a core could not honour them",
    )


def flags_from_one_source(doing: str, *, executable: HasFlags | None, value: int | None) -> int:
    """The flags to write down, from a live executable or from an explicit value: exactly one of the two."""
    if executable is not None and value is not None:
        live = executable.flags
        agree = "agree" if live == value else "disagree"
        raise FlagsError(
            doing,
            found=f"two sources that {agree}: the executable's {flag_names(live)} and the value {flag_names(value)}",
            required="one source: a live executable or an explicit value",
            hint="leave the value out; the executable states its own",
        )
    if executable is not None:
        return supported_flags(executable.flags, doing)
    if value is not None:
        return supported_flags(value, doing)
    raise FlagsError(
        doing,
        found="no source of flags",
        required="one source: a live executable or an explicit value",
        hint="state the flags to launch the graph with, or instantiate it",
    )
