"""A number on the command line that is one: neither nan nor infinite."""

from __future__ import annotations

import math
from typing import Any

import click

SEED = click.IntRange(-(1 << 63), (1 << 63) - 1)


class Number(click.FloatRange):
    """A finite number within bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not finite", param, ctx)
        return number
