"""Altering a record by paths such as ``regions/0/size``, and asking both readers what they think of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

import independent_reader
from heliograph.core.manifest import Core
from heliograph.core.rules.meaning import check_meaning
from heliograph.errors import FormatError

Change = dict[str, Any]  # path: value, or a function of the old value


def altered(core: Core, changes: Change) -> Core:
    plain = msgspec.json.decode(msgspec.json.encode(core))
    for path, value in changes.items():
        *way, last = path.split("/")
        place: Any = plain
        for part in way:
            place = place[int(part) if isinstance(place, list | tuple) else part]
        key = int(last) if isinstance(place, list | tuple) else last
        place[key] = value(place[key]) if isinstance(value, Callable) else value  # type: ignore[arg-type]
    return msgspec.convert(plain, Core)


def product_verdict(core: Core, draft: bool = False) -> str:
    """The rule that ``check_meaning`` finds broken, or an empty text."""
    try:
        check_meaning(core, draft)
    except FormatError as error:
        return error.rule
    return ""


def independent_verdict(core: Core) -> str:
    plain = msgspec.json.decode(msgspec.json.encode(core))
    try:
        independent_reader.check_core(plain)
        independent_reader.check_blobs(plain)
    except independent_reader.Refused as error:
        return error.rule
    return ""
