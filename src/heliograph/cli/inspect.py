"""``heliograph inspect``: what is in a core, where it lies, who signed it, where it came from, whether it fits here."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Literal

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from heliograph.cli.machine import fits
from heliograph.cli.output import bytes_text, console, json_option, print_json
from heliograph.core.format import ROLES
from heliograph.core.policy import Policy
from heliograph.core.verify import VerifiedCore, verify

KINDS = {0: "kernel", 1: "memcpy", 2: "memset", 5: "empty"}
MAP_WIDTH = 60  # characters of the memory map


@click.command("inspect")
@click.argument("core", type=click.Path(path_type=Path))
@json_option
def command(core: Path, as_json: bool) -> None:
    """Show what is in CORE, after checking its signature. Weights are not read; see `verify`."""
    with verify(core, Policy.local()) as verified:
        description = describe(verified) | {"fits": fits(verified)}
    if as_json:
        print_json(description)
    else:
        show(description, console())


def describe(verified: VerifiedCore) -> dict[str, Any]:
    """A core as plain data. ``tests/independent_reader.py`` gives the same from the files alone."""
    core = verified.core
    return {
        "name": verified.name,
        "digest": verified.digest,
        "format": core.format,
        "features": list(core.features),
        "model": core.model,
        "target": msgspec.to_builtins(core.target),
        "numerics": core.numerics,
        "slot": core.slot,
        "signers": list(verified.signers),
        "graphs": graphs(verified),
        "entries": [
            {
                "name": entry.name,
                "buckets": [
                    {
                        "shape": dict(bucket.shape),
                        "graphs": [segment.graph for segment in bucket.segments],
                        "inputs": [field.name for field in bucket.inputs],
                        "outputs": [field.name for field in bucket.outputs],
                    }
                    for bucket in entry.buckets
                ],
            }
            for entry in core.entries
        ],
        "functions": functions(verified),
        "libraries": libraries(verified),
        "modules": [
            {
                "digest": module.blob,
                "family": module.family,
                "origin": module.origin,
                "size": module.size,
                "globals": len(module.globals),
            }
            for module in core.modules
        ],
        "regions": [
            {"role": r.role, "base": r.base, "span": r.span, "size": r.size, "grow": r.grow} for r in core.regions
        ],
        "buffers": dict(Counter(buffer.role for buffer in core.buffers)),
        "weights": {
            "size": core.weights.size,
            "cap": core.weights.cap,
            "files": len(core.weights.slices),
            "tensors": len(core.weights.tensors),
            "layouts": dict(Counter(f"{t.dtype} {t.layout}" for t in core.weights.tensors)),
        },
        "bytes": {"graphs": core.graphs_file.size, "blobs": sum(blob.size for blob in core.blobs)},
        "self_tests": len(core.self_tests),
        "text": None if core.text is None else msgspec.to_builtins(core.text),
        "provenance": msgspec.to_builtins(verified.provenance),
    }


def column(verified: VerifiedCore, name: str, code: Literal["B", "I"]) -> list[int]:
    return verified.columns[name].cast("B").cast(code).tolist()


def graphs(verified: VerifiedCore) -> list[dict[str, Any]]:
    """Each graph with its nodes by kind and the number of different functions it launches."""
    first, row = column(verified, "graph.nodes", "I"), column(verified, "node.row", "I")
    kind, function = column(verified, "node.kind", "B"), column(verified, "kernel.function", "I")
    described = []
    for number, graph in enumerate(verified.core.graphs):
        nodes = range(first[number], first[number + 1])
        kinds = Counter(KINDS.get(kind[node], str(kind[node])) for node in nodes)
        used = {function[row[node]] for node in nodes if kind[node] == 0}
        described.append(
            {
                "name": graph.name,
                "flags": graph.flags,
                "nodes": graph.nodes,
                "edges": graph.edges,
                "kinds": dict(sorted(kinds.items())),
                "functions": len(used),
            }
        )
    return described


def functions(verified: VerifiedCore) -> list[dict[str, Any]]:
    launched = Counter(column(verified, "kernel.function", "I"))
    return [
        {"name": f.name, "module": f.module, "param_bytes": f.param_bytes, "nodes": launched[number]}
        for number, f in enumerate(verified.core.functions)
    ]


def libraries(verified: VerifiedCore) -> dict[str, int]:
    """Where kernels came from: functions of each origin."""
    modules = verified.core.modules
    return dict(sorted(Counter(modules[function.module].origin for function in verified.core.functions).items()))


def show(core: dict[str, Any], out: Console) -> None:
    out.print(Text(core["name"], style="bold"), f"  core digest {core['digest']}")
    target = core["target"]
    out.print(
        f"{core['model']} on {target['device']} {target['arch']}, {target['ranks']} rank(s), {core['numerics']}, "
        f"slot {core['slot']}, format {core['format']}"
    )
    out.print(f"signed by {', '.join(core['signers'])}")
    fit = core["fits"]
    out.print(
        Text(
            "fits this machine" if fit["ok"] else f"does not fit here: {fit['reason']}", "green" if fit["ok"] else "red"
        )
    )
    show_graphs(core, out)
    show_modules(core, out)
    show_map(core, out)
    weights = core["weights"]
    layouts = ", ".join(f"{count} {layout}" for layout, count in sorted(weights["layouts"].items()))
    size, files = bytes_text(weights["size"]), weights["files"]
    out.print(f"weights: {size} in {files} file(s), {weights['tensors']} tensors ({layouts})")
    out.print(f"self-tests: {core['self_tests']} graphs")
    show_provenance(core["provenance"], out)


def show_graphs(core: dict[str, Any], out: Console) -> None:
    table = Table(
        "entry", "bucket", "nodes", "edges", "kinds", "functions", "flags", title="Graphs", title_justify="left"
    )
    for entry in core["entries"]:
        for bucket in entry["buckets"]:
            shape = ", ".join(f"{name} {extent}" for name, extent in bucket["shape"].items())
            for number in bucket["graphs"]:
                graph = core["graphs"][number]
                kinds = ", ".join(f"{count} {kind}" for kind, count in graph["kinds"].items())
                cells = (
                    entry["name"],
                    shape,
                    graph["nodes"],
                    graph["edges"],
                    kinds,
                    graph["functions"],
                    graph["flags"],
                )
                table.add_row(*map(str, cells))
    out.print(table)


def show_modules(core: dict[str, Any], out: Console) -> None:
    table = Table("module", "origin", "size", "functions (nodes)", title="Modules", title_justify="left")
    for number, module in enumerate(core["modules"]):
        used = [f"{f['name']} ({f['nodes']})" for f in core["functions"] if f["module"] == number]
        table.add_row(module["family"], module["origin"], bytes_text(module["size"]), ", ".join(used))
    out.print(table)
    out.print(
        "functions by origin: "
        + ", ".join(f"{count} of {origin or 'unknown origin'}" for origin, count in core["libraries"].items())
    )


def show_map(core: dict[str, Any], out: Console) -> None:
    """The slot drawn to scale: each region's place in the address space, then what is mapped, to its own scale."""
    regions = sorted(core["regions"], key=lambda region: int(region["base"], 16))
    if not regions:
        return
    start = int(regions[0]["base"], 16)
    end = max(int(region["base"], 16) + region["span"] for region in regions)
    drawn = [" "] * MAP_WIDTH
    for region in regions:
        first = (int(region["base"], 16) - start) * MAP_WIDTH // (end - start)
        last = max(first + 1, (int(region["base"], 16) + region["span"] - start) * MAP_WIDTH // (end - start))
        drawn[first:last] = [str(ROLES.index(region["role"]))] * (last - first)
    out.print(
        f"\nMemory map, one character is {bytes_text((end - start) // MAP_WIDTH)} of addresses\n[{''.join(drawn)}]"
    )
    largest = max(region["size"] + region["grow"] for region in regions) or 1
    table = Table("", "region", "base", "mapped", "grows by", "to scale")
    for region in regions:
        size = region["size"]
        bar = "█" * max(1, round(size / largest * 24)) if size else ""
        grows = f"{bytes_text(region['grow'])} a unit" if region["grow"] else ""
        cells = (str(ROLES.index(region["role"])), region["role"], region["base"], bytes_text(size), grows, bar)
        table.add_row(*cells)
    out.print(table)


def show_provenance(made: dict[str, Any], out: Console) -> None:
    out.print(f"\nmade {made['created']} by: {' '.join(made['command'])}")
    if made["commit"]:
        out.print(f"source commit {made['commit']}" + (" with uncommitted changes" if made["uncommitted"] else ""))
    for title in ("versions", "compiler", "device", "source_files", "costs"):
        if made[title]:
            out.print(
                f"{title.replace('_', ' ')}: " + ", ".join(f"{item['name']} {item['value']}" for item in made[title])
            )
