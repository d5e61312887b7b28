"""A Recording becomes the files of a core: graphs as columns, blobs, weights, and the manifest that names them.

Self-test results are not known yet: the checker finds them, and ``with_results`` puts them in.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import msgspec

from heliograph.capture.cases import self_tests
from heliograph.capture.kernels import Kernels
from heliograph.capture.recording import RecordedGraph, Recording
from heliograph.capture.spec import TextSpec
from heliograph.core import manifest
from heliograph.core.format import FORMAT, INITIAL_ROLES, ROLES, UNKNOWN_DIGEST, region_base, region_span
from heliograph.core.manifest import Core, Slice
from heliograph.core.report import Padding, SelfTestResult
from heliograph.core.templates import Edge, GraphTemplate, Node, encode_catalogue
from heliograph.core.write import DraftWriter

PIECE = 64 << 20  # bytes of the weights that are handed over at a time


@dataclass(frozen=True, slots=True)
class Contents:
    """What a draft is written from: the manifest, graphs.safetensors, and which rows of its test cases are padding.

    ``literal`` is graphs.safetensors with the left-over bytes of parameters as they were captured: what is explored.
    """

    core: Core
    graphs: bytes
    literal: bytes
    padding: tuple[Padding, ...]


def put_recording(recording: Recording, writer: DraftWriter, cap: int) -> Contents:
    """Stores everything of a recording that is not manifest, and makes the manifest.

    ExportManifestError if the recording is no longer what was captured.
    """
    recording.manifest.check()  # holds: R4 tests/capture/test_draft.py::test_a_graph_that_was_reset_is_not_written
    with closing(recording.weights(PIECE)) as image:
        slices, chunks = writer.put_weights(image, cap)
    tests, padding = self_tests(recording, writer)
    initial = {role: tuple(_initial(recording, writer, role)) for role in INITIAL_ROLES}
    templates = [_template(recorded, recorded.nodes) for recorded in recording.graphs]
    attributes = [function.attributes for function in recording.kernels.functions]
    core = Core(
        format=FORMAT,
        features=(),
        model=recording.spec.model,
        target=recording.target,
        numerics=recording.spec.numerics,
        slot=recording.spec.slot,
        limits=recording.limits,
        regions=tuple(_regions(recording, initial)),
        buffers=tuple(recording.buffers.all),
        modules=tuple(_modules(recording.kernels, writer)),
        functions=tuple(_functions(recording.kernels)),
        graphs=tuple(
            manifest.Graph(
                name=recorded.name, flags=template.flags, nodes=len(template.nodes), edges=len(template.edges)
            )
            for recorded, template in zip(recording.graphs, templates, strict=True)
        ),
        entries=tuple(_entries(recording)),
        graphs_file=manifest.Blob(digest=UNKNOWN_DIGEST, size=0),
        weights=manifest.Weights(
            cap=cap, size=recording.arena.sizes.get("weights", 0), slices=slices, tensors=recording.tensors
        ),
        choices=(),
        self_tests=tests,
        text=_text(recording.spec.text, writer),
        blobs=(),
    )
    graphs = literal = encode_catalogue(templates, attributes, chunks)
    if any(recorded.literal is not None for recorded in recording.graphs):
        templates = [_template(recorded, recorded.literal or recorded.nodes) for recorded in recording.graphs]
        literal = encode_catalogue(templates, attributes, chunks)
    return Contents(core, graphs, literal, padding)


def with_results(core: Core, results: tuple[SelfTestResult, ...]) -> Core:
    """The manifest with what the checker found the self-tests to give."""
    by_graph = {result.graph: result for result in results}
    tests = []
    for test in core.self_tests:
        result = by_graph[test.graph]
        cases = tuple(
            msgspec.structs.replace(case, outputs=outputs, state=state)
            for case, outputs, state in zip(test.cases, result.outputs, result.states, strict=True)
        )
        tests.append(msgspec.structs.replace(test, cases=cases))
    return msgspec.structs.replace(core, self_tests=tuple(tests))


# ---- kernels and graphs --------------------------------------------------------------------------------------------
def _modules(kernels: Kernels, writer: DraftWriter) -> Iterator[manifest.Module]:
    for image in kernels.images:
        yield manifest.Module(
            blob=writer.put_blob(image.data),
            family=image.family,
            origin=image.origin,
            size=len(image.data),
            globals=tuple(
                manifest.Global(name=name, size=len(content), blob=writer.put_blob(content))
                for name, content in image.globals
            ),
        )


def _functions(kernels: Kernels) -> Iterator[manifest.Function]:
    for function in kernels.functions:
        yield manifest.Function(
            name=function.name,
            module=function.image,
            param_bytes=function.param_bytes,
            pointers=function.pointers,
            constants=(),
        )


def _template(recorded: RecordedGraph, nodes: tuple[Node, ...]) -> GraphTemplate:
    """A graph as data. Edges and flags are the driver's; GraphStateError if the graph was reset."""
    edges = recorded.graph.template.edges()
    return GraphTemplate(
        nodes=nodes,
        edges=tuple(Edge(source=source, target=target, data=data) for source, target, data in edges),
        flags=recorded.graph.encoder_flags(),
    )


# ---- memory --------------------------------------------------------------------------------------------------------
def _regions(recording: Recording, initial: dict[str, tuple[Slice, ...]]) -> Iterator[manifest.Region]:
    grown = next((buffer for buffer in recording.buffers.all if buffer.grows), None)
    for role in sorted(ROLES, key=lambda role: region_base(recording.spec.slot, role)):
        size = recording.arena.sizes.get(role, 0)
        if size:
            grows = grown is not None and grown.role == role
            yield manifest.Region(
                role=role,
                base=f"{region_base(recording.spec.slot, role):#x}",
                span=region_span(role),
                size=grown.offset if grown is not None and grows else size,
                grow=grown.size if grown is not None and grows else 0,
                grow_at=grown.offset if grown is not None and grows else 0,
                initial=initial.get(role, ()),
            )


def _initial(recording: Recording, writer: DraftWriter, role: str) -> Iterator[Slice]:
    """What of a region is kept by value, each range a blob."""
    for offset, content in recording.kept.get(role, ()):
        yield Slice(offset=offset, size=len(content), blob=writer.put_blob(content))


# ---- entries ----------------------------------------------------------------------------------------
def _entries(recording: Recording) -> Iterator[manifest.Entry]:
    numbered = [(index, recorded.placed) for index, recorded in enumerate(recording.graphs)]
    for entry in recording.spec.entries:
        buckets = tuple(
            manifest.Bucket(
                shape=tuple(placed.bucket.items()),
                segments=(manifest.Segment(kind="graph", graph=index),),
                inputs=placed.inputs,
                outputs=placed.outputs,
            )
            for index, placed in numbered
            if placed.entry is entry
        )
        yield manifest.Entry(name=entry.name, buckets=buckets)


# ---- the rest ------------------------------------------------------------------------------------------------------
def _text(text: TextSpec | None, writer: DraftWriter) -> manifest.Text | None:
    if text is None:
        return None
    return manifest.Text(
        tokenizer=writer.put_blob(text.tokenizer),
        chat_template=writer.put_blob(text.chat_template.encode()),
        bos=text.bos,
        eos=text.eos,
        vocabulary=text.vocabulary,
        context=text.context,
        block_tokens=text.block_tokens,
        concurrency=text.concurrency,
        bos_text=text.bos_text,
        eos_text=text.eos_text,
    )
