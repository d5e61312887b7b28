"""Version, choices, self-tests, text, blobs: M5, M47 to M51."""

from __future__ import annotations

from collections.abc import Iterator

from heliograph.core.format import FEATURES, FORMAT, MAX_BLOB_BYTES, UNKNOWN_DIGEST
from heliograph.core.manifest import Bucket, Core, SelfTest
from heliograph.core.refusal import refusal

DOING = "checking core.json"
WEIGHTS = "weights"


def check_version(core: Core) -> None:
    if core.format != FORMAT:
        raise refusal(DOING, f"format {core.format}", f"format {FORMAT}, which this version reads", "M5")
    if list(core.features) != sorted(set(core.features)) or not FEATURES.issuperset(core.features):
        raise refusal(DOING, f"features {list(core.features)}", f"of {sorted(FEATURES)}, sorted, each once", "M5")


def check_choices(core: Core) -> None:
    keys = [(choice.op, choice.shape) for choice in core.choices]
    if keys != sorted(set(keys)):
        raise refusal(DOING, "choices out of order, or one twice", "ascending by op, then shape", "M47")


def check_self_tests(core: Core, draft: bool) -> None:
    buckets = {segment.graph: b for entry in core.entries for b in entry.buckets for segment in b.segments}
    if [test.graph for test in core.self_tests] != list(range(len(core.graphs))):
        raise refusal(DOING, f"self-tests of {len(core.self_tests)} graphs", "one for each graph, in order", "M48")
    grow, room = 0, 0
    for region in core.regions:
        if region.grow:
            grow, room = region.grow, region.span - region.grow_at
    for test in core.self_tests:
        inputs = {case.inputs for case in test.cases}
        need = input_bytes(core, buckets[test.graph])
        if len(test.cases) < 2 or (len(inputs) < 2 and need > 0):
            raise refusal(DOING, f"{len(test.cases)} cases for graph {test.graph}", "two that differ in inputs", "M48")
        check_cases(test, draft, grow, room)


def check_cases(test: SelfTest, draft: bool, grow: int, room: int) -> None:
    for case in test.cases:
        if (case.units and not grow) or case.units * grow > room:
            raise refusal(DOING, f"{case.units} units of {grow} bytes", f"units that fit into {room} bytes", "M48")
        if case.inputs == UNKNOWN_DIGEST or (not draft and UNKNOWN_DIGEST in {case.outputs, case.state}):
            raise refusal(DOING, f"graph {test.graph} with unknown results", "every result known", "M49")


def input_bytes(core: Core, bucket: Bucket) -> int:
    return sum(core.buffers[field.buffer].size for field in bucket.inputs)


def check_text(core: Core) -> None:
    text = core.text
    if text is None:
        return
    if min(text.vocabulary, text.context, text.block_tokens, text.concurrency) < 1 or any(
        token >= text.vocabulary for token in (text.bos, *text.eos)
    ):
        raise refusal(
            DOING,
            f"vocabulary {text.vocabulary}, context {text.context}, blocks of {text.block_tokens} tokens, "
            f"concurrency {text.concurrency}, bos {text.bos}, eos {list(text.eos)}",
            "at least 1 each, tokens of the vocabulary",
            "M50",
        )


def check_blobs(core: Core) -> None:
    sizes = {blob.digest: blob.size for blob in core.blobs}
    if [blob.digest for blob in core.blobs] != sorted(sizes):
        raise refusal(DOING, "blobs out of order, or one twice", "ascending digests, each once", "M51")
    if UNKNOWN_DIGEST in sizes:
        raise refusal(DOING, "a blob that is not known yet", "known digests", "M49")
    used = set()
    for what, digest, size in references(core):
        if digest not in sizes or (size is not None and sizes[digest] != size):
            raise refusal(
                DOING,
                f"{what} of {size if size is not None else 'any'} bytes in blob {digest}",
                f"a listed blob of that size, listed are {sizes.get(digest, 'no')} bytes",
                "M51",
            )
        if what != WEIGHTS and sizes[digest] > MAX_BLOB_BYTES:
            raise refusal(DOING, f"{what} of {sizes[digest]} bytes", f"at most {MAX_BLOB_BYTES}", "M51")
        used.add(digest)
    if len(used) != len(sizes):
        raise refusal(DOING, f"{len(sizes) - len(used)} blobs that nothing refers to", "none", "M51")


def held_in_memory(core: Core) -> list[str]:
    """The blobs that are more than weight slices, sorted."""
    return sorted({digest for what, digest, _ in references(core) if what != WEIGHTS})


def blob_references(core: Core) -> set[str]:
    """Every digest that has to be in ``blobs``."""
    return {digest for _, digest, _ in references(core)}


def references(core: Core) -> Iterator[tuple[str, str, int | None]]:
    """Every reference to a blob: what it is, the digest, the size it states (None: it states none)."""
    for module in core.modules:
        yield f"image {module.family}", module.blob, module.size
        for variable in module.globals:
            yield f"variable {variable.name} of {module.family}", variable.blob, variable.size
    for part in core.weights.slices:
        yield WEIGHTS, part.blob, part.size
    for region in core.regions:
        for part in region.initial:
            yield f"initial content of {region.role}", part.blob, part.size
    buckets = {segment.graph: b for entry in core.entries for b in entry.buckets for segment in b.segments}
    for test in core.self_tests:
        for case in test.cases:
            yield f"self-test inputs of graph {test.graph}", case.inputs, input_bytes(core, buckets[test.graph])
    if core.text is not None:
        yield "tokenizer", core.text.tokenizer, None
        yield "chat template", core.text.chat_template, None
