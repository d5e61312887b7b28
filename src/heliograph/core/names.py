"""Core names: chosen, or ``{arch}-tp{ranks}-{YYYYMMDDhhmm}[-{count}]``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from typing import Final

from heliograph.core.format import MAX_CORE_NAME
from heliograph.errors import UsageError

_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._+-]{{0,{MAX_CORE_NAME - 1}}}")


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
    """The name for a core made ``now``, in UTC, then the ones to try if it is taken: with -2, -3 ..."""
    name = f"{arch}-tp{ranks}-{now.astimezone(UTC):%Y%m%d%H%M}"
    yield name
    for number in count(2):
        yield f"{name}-{number}"
