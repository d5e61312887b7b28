"""Core names: ``{arch}-tp{ranks}-{YYYYMMDDhhmm}[-{count}]``, parsed from the right, since an arch may hold dashes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from typing import Final

import msgspec

from heliograph.core.format import MAX_CORE_NAME
from heliograph.errors import UsageError

_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._+-]{{0,{MAX_CORE_NAME - 1}}}")
_AUTOMATIC: Final = re.compile(
    r"(?P<arch>.+)-tp(?P<ranks>[1-9]\d*)-(?P<minute>\d{12})(?:-(?P<count>[1-9]\d*))?", re.ASCII
)


class CoreName(msgspec.Struct, frozen=True):
    """The parts of an automatic name. ``count`` is 1 for the first core of its minute."""

    arch: str
    ranks: int
    minute: datetime
    count: int

    @classmethod
    def parse(cls, name: str) -> CoreName | None:
        """None for a name that somebody chose."""
        match = _AUTOMATIC.fullmatch(name)
        if match is None:
            return None
        try:
            minute = datetime.strptime(match["minute"], "%Y%m%d%H%M").replace(tzinfo=UTC)
        except ValueError:
            return None
        return cls(match["arch"], int(match["ranks"]), minute, int(match["count"] or 1))

    def __str__(self) -> str:
        suffix = f"-{self.count}" if self.count > 1 else ""
        return f"{self.arch}-tp{self.ranks}-{self.minute:%Y%m%d%H%M}{suffix}"


def is_core_name(name: str) -> bool:
    """M25: what a core may be called, and so what its folder may be called."""
    return _NAME.fullmatch(name) is not None


def check_name(name: str) -> str:
    if not is_core_name(name):
        raise UsageError(
            "naming a core",
            found=repr(name),
            required=f"1 to {MAX_CORE_NAME} letters, digits and . _ + -, beginning with a letter or digit",
            hint="choose another name",
        )
    return name


def automatic_names(arch: str, ranks: int, now: datetime) -> Iterator[str]:
    """The name for a core made ``now``, then the ones to try if it is taken."""
    for number in count(1):
        yield str(CoreName(arch, ranks, now.astimezone(UTC), number))
