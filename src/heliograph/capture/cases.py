"""The cases of self-tests: what each graph is run on before its first use, and which of their rows are padding."""

from __future__ import annotations

from collections.abc import Iterator

from heliograph.capture.examples import example
from heliograph.capture.places import PlacedGraph
from heliograph.capture.recording import Recording
from heliograph.capture.spec import Example
from heliograph.core import manifest
from heliograph.core.format import UNKNOWN_DIGEST
from heliograph.core.report import Padding
from heliograph.core.write import DraftWriter
from heliograph.errors import UsageError

MOST_SEEDS = 64  # tried until enough inputs differ
DIFFERENT_INPUTS = 3  # the first two are those of a start
LEAST_INPUTS = 2


def self_tests(recording: Recording, writer: DraftWriter) -> tuple[tuple[manifest.SelfTest, ...], tuple[Padding, ...]]:
    """A test for each graph, its inputs stored, its results unknown; and the rows of its cases that are padding."""
    tests: list[manifest.SelfTest] = []
    padding: list[Padding] = []
    for index, placed in enumerate(recorded.placed for recorded in recording.graphs):
        cases = []
        for case, given in enumerate(_test_inputs(recording, placed)):
            inputs = writer.put_blob(b"".join(given.inputs[field.name] for field in placed.inputs))
            units = recording.spec.units if given.units is None else given.units
            cases.append(manifest.Case(inputs=inputs, outputs=UNKNOWN_DIGEST, state=UNKNOWN_DIGEST, units=units))
            padding += _padding(recording, index, case, placed, given)
        tests.append(manifest.SelfTest(graph=index, cases=tuple(cases)))
    return tuple(tests), tuple(padding)


def _padding(recording: Recording, graph: int, case: int, placed: PlacedGraph, given: Example) -> Iterator[Padding]:
    """The fields of a case that have rows which are no real ones. Rows are the leading dimension."""
    fields = [(field, False) for field in placed.inputs] + [(field, True) for field in placed.outputs]
    for dimension, rows in (given.real_rows or {}).items():
        for field, output in fields:
            buffer = recording.buffers.all[field.buffer]
            if _leads(dimension, placed, field.name, buffer.shape if output else None):
                yield Padding(
                    graph=graph,
                    case=case,
                    field=field.name,
                    output=output,
                    real_bytes=buffer.size // buffer.shape[0] * rows,
                    poison=not output and buffer.dtype in ("f64", "f32", "f16", "bf16"),
                )


def _leads(dimension: str, placed: PlacedGraph, field: str, output: tuple[int, ...] | None) -> bool:
    """Whether a field's rows are those of a bucket's dimension; of an output only its shape is known."""
    if output is not None:
        return output[:1] == (placed.bucket[dimension],)
    spec = placed.entry.inputs.get(field)
    return spec is not None and spec.shape[:1] == (dimension,)


def _test_inputs(recording: Recording, placed: PlacedGraph) -> list[Example]:
    """Two or three different inputs, then the first again: what a replay leaves behind must not change the next."""
    spec, entry, bucket = recording.spec, placed.entry, placed.bucket
    given: list[Example] = []
    for seed in range(MOST_SEEDS):
        made = example(spec, entry, bucket, seed)
        if not placed.inputs:
            return [made] * 2
        if all(made.inputs != each.inputs for each in given):
            given.append(made)
        if len(given) == DIFFERENT_INPUTS:
            break
    if len(given) >= LEAST_INPUTS:
        return [*given, given[0]]
    raise UsageError(
        f"making self-test inputs for {placed.name!r}",
        found=f"the same inputs for {MOST_SEEDS} seeds",
        required="inputs that differ from seed to seed",
        hint="let spec.examples use its seed, or state wider bounds of values in the inputs' TensorSpec",
    )
