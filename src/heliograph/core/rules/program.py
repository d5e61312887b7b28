"""Modules, functions, graphs, entries, fields: M38, M40 to M42, M52."""

from __future__ import annotations

from itertools import pairwise

from heliograph.core.format import FLAGS, MAX_PARAM_BYTES
from heliograph.core.manifest import Bucket, Core, Entry, Field, Function
from heliograph.core.refusal import refusal

DOING = "checking core.json"


def check_globals(core: Core) -> None:
    for module in core.modules:
        names = [each.name for each in module.globals]
        if names != sorted(set(names)) or not all(each.size for each in module.globals):
            raise refusal(
                DOING, f"variables {names} of {module.family}", "ascending names, each once, of at least 1 byte", "M52"
            )
        if names and core.target.device == "host":
            raise refusal(DOING, f"variables {names} of {module.family}", "none on the host", "M52")


def check_functions(core: Core) -> None:
    names = set()
    used = set()
    for function in core.functions:
        if function.module >= len(core.modules):
            raise refusal(DOING, f"{function.name} of module {function.module}", f"< {len(core.modules)}", "M38")
        names.add((function.module, function.name))
        used.add(function.module)
        check_pointers(function, core.target.device == "host")
    if len(names) != len(core.functions):
        raise refusal(DOING, "two functions of one module and name", "unique names", "M38")
    if len({module.blob for module in core.modules}) != len(core.modules):
        raise refusal(DOING, "two modules of one image", "one module for each image", "M38")
    if len(used) != len(core.modules):
        raise refusal(DOING, f"{len(core.modules) - len(used)} modules without a function", "none", "M38")


def check_pointers(function: Function, host: bool) -> None:
    free = 0
    for pointer in function.pointers:
        if pointer < free or pointer % 8 or pointer + 8 > function.param_bytes:
            raise refusal(
                DOING,
                f"{function.name} with a pointer at {pointer} of {function.param_bytes} bytes",
                "multiples of 8 that ascend and end within the parameters",
                "M38",
            )
        free = pointer + 8
    if function.param_bytes > MAX_PARAM_BYTES or (function.pointers and not host):
        raise refusal(
            DOING,
            f"{function.name} with {function.param_bytes} bytes of parameters, {len(function.pointers)} pointers",
            f"at most {MAX_PARAM_BYTES} bytes; pointers on the host only",
            "M38",
        )


def check_graphs(core: Core) -> None:
    if not core.graphs or len({graph.name for graph in core.graphs}) != len(core.graphs):
        raise refusal(DOING, "no graph, or two graphs of one name", "graphs with unique names", "M40")
    for graph in core.graphs:
        if graph.flags not in FLAGS or graph.nodes == 0:
            raise refusal(
                DOING, f"graph {graph.name} of {graph.nodes} nodes, flags {graph.flags}", f"flags of {FLAGS}", "M40"
            )
    if len({entry.name for entry in core.entries}) != len(core.entries):
        raise refusal(DOING, "two entries of one name", "unique names", "M41")
    for entry in core.entries:
        check_entry(entry)
    used = sorted(segment.graph for entry in core.entries for b in entry.buckets for segment in b.segments)
    if used != list(range(len(core.graphs))):
        raise refusal(DOING, f"segments that run graphs {used[:20]}", "every graph exactly once", "M41")


def check_entry(entry: Entry) -> None:
    shapes = [bucket.shape for bucket in entry.buckets]
    dimensions = {tuple(name for name, _ in shape) for shape in shapes}
    extents = [tuple(extent for _, extent in shape) for shape in shapes]
    if (
        len(dimensions) != 1
        or any(len(set(names)) != len(names) for names in dimensions)
        or any(extent == 0 for shape in extents for extent in shape)
        or any(lower >= higher for lower, higher in pairwise(extents))
    ):
        raise refusal(
            DOING,
            f"entry {entry.name} with buckets {[dict(shape) for shape in shapes]}",
            "buckets of the same dimensions, smallest first",
            "M41",
        )
    for bucket in entry.buckets:
        if not bucket.segments or any(segment.kind != "graph" for segment in bucket.segments):
            kinds = [segment.kind for segment in bucket.segments]
            raise refusal(DOING, f"a bucket of {entry.name} with segments {kinds}", "segments of kind graph", "M41")


def check_fields(core: Core) -> None:
    for entry in core.entries:
        for bucket in entry.buckets:
            check_bucket(core, entry, bucket)


def check_bucket(core: Core, entry: Entry, bucket: Bucket) -> None:
    doing = f"{DOING}, entry {entry.name}, {dict(bucket.shape)}"
    buffers = [field.buffer for field in (*bucket.inputs, *bucket.outputs)]
    for number in buffers:
        if number >= len(core.buffers) or core.buffers[number].role != "io":
            raise refusal(doing, f"a field in buffer {number}", "a buffer of io", "M42")
    if len(set(buffers)) != len(buffers) or repeated(bucket.inputs) or repeated(bucket.outputs):
        raise refusal(doing, "a name or a buffer twice", "unique names, one buffer each", "M42")


def repeated(fields: tuple[Field, ...]) -> bool:
    return len({field.name for field in fields}) != len(fields)
