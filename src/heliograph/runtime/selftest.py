"""A graph's self-test: its stored inputs are run and the results compared with those that the checker recorded.

Before the first case the fixed part of ``state`` is zero, the units that the cases touch hold the test pattern, and
``persistent`` and the variables of modules have their initial content; nothing is set back between the cases. Outputs
are zeroed before each case.
Unit 0 of growth is padding, where rows of no request may write in any order: it is left out of the digest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
from blake3 import blake3

from heliograph.core.digest import hasher
from heliograph.core.manifest import Bucket, Case, SelfTest
from heliograph.errors import SelfTestError
from heliograph.runtime.loaded import Loaded
from heliograph.runtime.patterns import state_period

STARTING_CASES = 2


class CaseResult(msgspec.Struct, frozen=True):
    """BLAKE3 over all outputs in the order of the bucket's fields, and over ``state``."""

    outputs: str
    state: str


def run_case(loaded: Loaded, bucket: Bucket, case: Case) -> CaseResult:
    """One replay of a bucket whose graphs are built."""
    results = [loaded.buffer(field) for field in bucket.outputs]
    loaded.write_inputs(bucket, loaded.verified.blob(case.inputs))
    loaded.fields.fill(results, 0)
    loaded.launch(bucket)
    loaded.drain()
    outputs = blake3()
    for data in loaded.fields.read(results):
        outputs.update(data)
    return CaseResult(outputs.hexdigest(), state_digest(loaded, case.units))


def state_digest(loaded: Loaded, units: int) -> str:
    """BLAKE3 over the fixed part of ``state``, then over units 1 to ``units - 1`` of growth."""
    region, memory = loaded.growing, loaded.memory
    size = fixed_state(loaded)
    digest = hasher(size + (region.grow * units if region is not None else 0))
    if size:
        for piece in memory.pieces("state", 0, size):
            digest.update(piece)
    if region is not None and units > 1:
        for piece in memory.pieces(region.role, region.grow_at + region.grow, region.grow * (units - 1)):
            digest.update(piece)
    return digest.hexdigest()


def fixed_state(loaded: Loaded) -> int:
    """Bytes of ``state`` that do not grow."""
    return next((region.size for region in loaded.core.regions if region.role == "state"), 0)


def touched_units(cases: Sequence[Case]) -> int:
    """The first units of growth, as many as any of the cases may touch."""
    return max((case.units for case in cases), default=0)


def prepare_state(loaded: Loaded, cases: Sequence[Case]) -> int:
    """What cases start from; gives the number of units that hold the test pattern."""
    loaded.memory.fill("state", 0, 0, fixed_state(loaded))
    region, units = loaded.growing, touched_units(cases)
    if region is not None and units:
        dtype = next(buffer.dtype for buffer in loaded.core.buffers if buffer.grows)
        period, size = state_period(dtype), region.grow * units
        with memoryview(period) as view:
            for at in range(0, size, len(period)):
                loaded.memory.write(region.role, region.grow_at + at, view[: size - at])
    loaded.restore()
    return units


def clear_state(loaded: Loaded, units: int) -> None:
    """Zeroes what a self-test touched."""
    loaded.memory.fill("state", 0, 0, fixed_state(loaded))
    region = loaded.growing
    if region is not None and units:
        loaded.memory.fill(region.role, region.grow_at, 0, region.grow * units)
    loaded.restore()


def distinct_cases(test: SelfTest) -> int:
    """How many cases come before the first whose inputs were there already."""
    inputs = [case.inputs for case in test.cases]
    return next((number for number, each in enumerate(inputs) if each in inputs[:number]), len(inputs))


def chosen_cases(test: SelfTest, *, whole: bool) -> Sequence[Case]:
    """All cases of the ``whole`` test; else the first two different ones, which is what a start can afford."""
    return test.cases if whole else test.cases[: min(STARTING_CASES, distinct_cases(test))]


def self_test(loaded: Loaded, graph: int, cases: Sequence[Case]) -> None:
    """Runs a graph's cases, from its first one on.

    SelfTestError names graph, case and what differs. State is left as the cases left it.
    """
    bucket = loaded.bucket_of(graph)
    prepare_state(loaded, cases)
    for number, case in enumerate(cases):
        _compare(loaded.core.graphs[graph].name, number, run_case(loaded, bucket, case), case)


def _compare(graph: str, number: int, result: CaseResult, case: Case) -> None:
    for what, found, required in (("outputs", result.outputs, case.outputs), ("state", result.state, case.state)):
        if found != required:
            raise SelfTestError(
                f"self-test of {graph}, case {number}",
                found=f"{what} with BLAKE3 {found}",
                required=required,
                hint="do not use this core here: verify it, and compare this machine with the one in its record",
            )


@contextmanager
def cleared(loaded: Loaded, graph: int, cases: Sequence[Case]) -> Iterator[None]:
    """Puts back what a self-test before the first launch disturbs: everything was zero, or had its initial content."""
    try:
        yield
    finally:
        clear_state(loaded, touched_units(cases))
        for role, offset, size in _fields(loaded, graph):
            loaded.memory.fill(role, offset, 0, size)


@contextmanager
def kept(loaded: Loaded, graph: int, cases: Sequence[Case]) -> Iterator[None]:
    """Puts back what a self-test between two launches disturbs: state, persistent memory and variables, inputs and
    outputs."""
    spans = [("state", 0, fixed_state(loaded)), ("persistent", 0, loaded.memory.mapped("persistent"))]
    region = loaded.growing
    if region is not None:
        spans.append((region.role, region.grow_at, region.grow * touched_units(cases)))
    spans += _fields(loaded, graph)
    before = [(role, offset, loaded.memory.read(role, offset, size)) for role, offset, size in spans if size]
    contents = [(module, each.name, module.read_global(each.name)) for module, each in loaded.variables]
    changed = loaded.changed
    try:
        yield
    finally:
        for role, offset, data in before:
            loaded.memory.write(role, offset, data)
        for module, name, content in contents:
            module.write_global(name, content)
        loaded.changed = changed


def _fields(loaded: Loaded, graph: int) -> list[tuple[str, int, int]]:
    """Role, offset and size of the inputs and outputs that the test writes."""
    bucket = loaded.bucket_of(graph)
    buffers = [loaded.buffer(field) for field in (*bucket.inputs, *bucket.outputs)]
    return [(buffer.role, buffer.offset, buffer.size) for buffer in buffers]
