"""``heliograph replay``: every bucket of a core, again and again, against its self-test."""

from __future__ import annotations

import random
import time
from pathlib import Path

import click
from rich.table import Table

from heliograph.cli.output import console, device_option, json_option, print_json, progress, threads_option
from heliograph.core.policy import Policy
from heliograph.core.verify import verify
from heliograph.runtime.load import load


@click.command("replay")
@click.argument("core", type=click.Path(path_type=Path))
@click.option("--times", type=click.IntRange(1), default=3, show_default=True, help="Self-tests of each graph.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the order in which graphs are replayed.")
@threads_option
@device_option
@json_option
def command(core: Path, times: int, seed: int, threads: int, device: int, as_json: bool) -> int:
    """Replay every graph of CORE in shuffled order; exit 1 if one does not give its recorded results."""
    with (
        progress(as_json) as tell,
        verify(core, Policy.local()) as verified,
        load(verified, workers=threads, index=device) as program,
    ):
        graphs = verified.core.graphs
        order = [number for number in range(len(graphs)) for _ in range(times)]
        random.Random(seed).shuffle(order)  # noqa: S311 - an order, not a secret
        passed, spent = [0] * len(graphs), [0] * len(graphs)
        for done, number in enumerate(order):
            tell("replaying", done, len(order))
            start = time.perf_counter_ns()
            passed[number] += program.self_test(number)
            spent[number] += time.perf_counter_ns() - start
    ok = all(count == times for count in passed)
    if as_json:
        rows = [
            {"graph": graph.name, "passed": passed[number], "of": times, "nanoseconds": spent[number]}
            for number, graph in enumerate(graphs)
        ]
        print_json({"ok": ok, "seed": seed, "graphs": rows})
        return 0 if ok else 1
    table = Table("graph", "passed", "ms a self-test")
    for number, graph in enumerate(graphs):
        table.add_row(graph.name, f"{passed[number]} of {times}", f"{spent[number] / times / 1e6:.2f}")
    out = console()
    out.print(table)
    out.print("all graphs gave their recorded results" if ok else "[red]a graph did not give its recorded results[/]")
    return 0 if ok else 1
