"""``heliograph doctor``: what this machine can do, and whether a core fits it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from heliograph.cli.machine import fits, judge, look
from heliograph.cli.output import bytes_text, console, device_option, json_option, print_json
from heliograph.core.policy import Policy
from heliograph.core.verify import verify


@click.command("doctor")
@click.argument("core", required=False, type=click.Path(path_type=Path))
@device_option
@json_option
def command(core: Path | None, device: int, as_json: bool) -> int:
    """Check this machine; with CORE, also whether that core fits it and how many KV tokens would."""
    findings = judge(look())
    fit = None
    if core is not None:
        with verify(core, Policy.local()) as verified:
            fit = fits(verified, device)
    ok = all(finding.ok is not False for finding in findings) and (fit is None or fit["ok"])
    if as_json:
        print_json({"ok": ok, "probes": [asdict(finding) for finding in findings], "core": fit})
        return 0 if ok else 1
    table = Table("", "probe", "found", "next step")
    for finding in findings:
        mark = {True: "[green]ok[/]", False: "[red]no[/]", None: "[dim]info[/]"}[finding.ok]
        table.add_row(mark, finding.probe, finding.found, finding.hint if finding.ok is False else "")
    out = console()
    out.print(table)
    if fit is not None:
        out.print(summary(fit))
    return 0 if ok else 1


def summary(fit: Mapping[str, Any]) -> str:
    """What ``fits`` found, in a line."""
    verdict = "[green]fits[/]" if fit["ok"] else f"[red]does not fit[/]: {fit['reason']}"
    units = f", then room for {fit['units']} units" if fit["units"] else ""
    tokens = f" = {fit['tokens']} KV tokens" if fit["tokens"] else ""
    return f"core: {verdict}; fixed memory {bytes_text(fit['fixed_bytes'])}{units}{tokens}"
