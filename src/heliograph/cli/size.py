"""A byte count on the command line."""

from __future__ import annotations

import re

import click

UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


class Size(click.ParamType[int]):
    """A byte count such as 64MiB."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"(\d+)\s*(KiB|MiB|GiB|)", str(value))
        if not found:
            self.fail(f"{value!r} is no size; write for example 64MiB", param, ctx)
        return int(found[1]) * UNITS[found[2]]
