"""What core.json must mean: each rule with what it refuses, and with what is just allowed. Both readers agree."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import independent_reader
from core.alter import Change, altered, independent_verdict, product_verdict
from heliograph.core.encoding import encode
from heliograph.core.format import (
    FORMAT,
    MAX_BLOB_BYTES,
    MAX_INTEGER,
    MAX_PARAM_BYTES,
    SLOT_BASE,
    SLOT_SPAN,
    SLOT_STRIDE,
    UNKNOWN_DIGEST,
)
from heliograph.core.manifest import Blob, Choice, Core
from tiny_core import TinyCore, digest, tiny_core

WORD = 4 << 30
TABLE = digest(bytes(range(64)))
OTHER = digest(b"something else")

# Index of each buffer and region of the small core, by name.
BUFFERS = {buffer.name: number for number, buffer in enumerate(tiny_core().core.buffers)}
REGIONS = {region.role: number for number, region in enumerate(tiny_core().core.regions)}


@pytest.fixture(scope="module")
def core(tiny: TinyCore) -> Core:
    """With text, choices, and ``blobs`` filled in."""
    parts = tiny_core(weight_bytes=64 << 10, text=True)
    record = msgspec.json.decode(parts.files()["core.json"], type=Core)
    choices = (Choice(op="copy", shape="1", variant="plain"), Choice(op="copy", shape="2", variant="plain"))
    return msgspec.structs.replace(record, choices=choices)


def b(name: str, field: str) -> str:
    return f"buffers/{BUFFERS[name]}/{field}"


def r(role: str, field: str) -> str:
    return f"regions/{REGIONS[role]}/{field}"


def swap(first: int, second: int) -> Any:
    def swapped(items: list[Any]) -> list[Any]:
        items = list(items)
        items[first], items[second] = items[second], items[first]
        return items

    return swapped


def without(*numbers: int) -> Any:
    return lambda items: [item for number, item in enumerate(items) if number not in numbers]


def more(*items: Any) -> Any:
    return lambda old: [*old, *items]


def plus(number: int) -> Any:
    return lambda old: old + number


BUCKET = "entries/0/buckets/0"
CASES = "self_tests/0/cases"
TENSORS = "weights/tensors"
IN, OUT = BUFFERS["io/step/1/in/x"], BUFFERS["io/step/1/out/y"]

GLOBALS = "modules/0/globals"
CUDA: Change = {
    "target/device": "cuda", "target/abi": 0, "target/processors": 132, "target/shared_optin": 232448,
    "target/driver": 13000, "functions/0/pointers": [],
}  # fmt: skip


def variable(name: str, size: int = 64, blob: str = TABLE) -> dict[str, Any]:
    return {"name": name, "size": size, "blob": blob}


REFUSED: dict[str, tuple[str, Change]] = {
    "a later format": ("M5", {"format": FORMAT + 1}),
    "an unknown feature": ("M5", {"features": ["time-travel"]}),
    "no architecture": ("M30", {"target/arch": ""}),
    "no model": ("M30", {"model": ""}),
    "an unknown device": ("M30", {"target/device": "abacus"}),
    "unknown numerics": ("M30", {"numerics": "approximate"}),
    "no rank": ("M30", {"target/ranks": 0}),
    "a host without ABI": ("M30", {"target/abi": 0}),
    "a host with processors": ("M30", {"target/processors": 132}),
    "CUDA with a host ABI": ("M30", {"target/device": "cuda"}),
    "CUDA without processors": ("M30", CUDA | {"target/processors": 0}),
    "CUDA without shared memory": ("M30", CUDA | {"target/shared_optin": 0}),
    "CUDA without a driver": ("M30", CUDA | {"target/driver": 0}),
    "a variable on the host": ("M52", {GLOBALS: [variable("counter")]}),
    "a variable without bytes": ("M52", CUDA | {GLOBALS: [variable("counter", 0)]}),
    "variables out of order": ("M52", CUDA | {GLOBALS: [variable("b"), variable("a")]}),
    "a variable twice": ("M52", CUDA | {GLOBALS: [variable("a"), variable("a")]}),
    "a variable that is not listed": ("M51", CUDA | {GLOBALS: [variable("a", blob=OTHER)]}),
    "a variable of another size": ("M51", CUDA | {GLOBALS: [variable("a", 63)]}),
    "a limit on the host": ("M53", {"limits": [["stack", 1024]]}),
    "an unknown limit": ("M53", CUDA | {"limits": [["patience", 1]]}),
    "limits out of order": ("M53", CUDA | {"limits": [["stack", 1024], ["heap", 1024]]}),
    "a limit twice": ("M53", CUDA | {"limits": [["stack", 1024], ["stack", 1024]]}),
    "a slot that does not exist": ("M31", {"slot": 8}),
    "another slot than the bases": ("M31", {"slot": 1}),
    "an unknown role": ("M31", {r("constants", "role"): "constant"}),
    "two regions of one role": ("M31", {r("persistent", "role"): "constants"}),
    "a round base": ("M31", {r("constants", "base"): hex(SLOT_BASE - WORD + (64 << 32))}),
    "a base between words": ("M31", {r("weights", "base"): hex(SLOT_BASE + 4096)}),
    "regions out of order": ("M31", {"regions": swap(0, 1)}),
    "spans that overlap": ("M31", {r("weights", "span"): 5 * (256 << 30)}),
    "a span beyond the slot": ("M31", {r("state", "span"): SLOT_SPAN}),
    "a base below the slot": ("M31", {r("weights", "base"): hex(SLOT_BASE - (64 << 32))}),
    "a span that no device can reserve": ("M31", {r("constants", "span"): plus(-4096)}),
    "no span": ("M31", {r("constants", "span"): 0}),
    "a region larger than its span": ("M32", {r("constants", "size"): 249 << 30}),
    "a region without units that grows": ("M33", {r("io", "grow"): 256}),
    "constants that grow": ("M33", {r("constants", "grow"): 64, b("constants/table", "grows"): True,
                                    r("constants", "size"): 0, r("constants", "initial"): []}),
    "units of another size than their buffer": ("M33", {r("state", "grow"): 512}),
    "units elsewhere than their buffer": ("M33", {r("state", "grow_at"): plus(256)}),
    "units inside of what does not grow": ("M33", {r("state", "size"): plus(1)}),
    "a unit beyond the span": ("M33", {r("state", "grow_at"): SLOT_SPAN, b("state/kv", "offset"): SLOT_SPAN}),
    "two growing buffers": ("M33", {b("state/history", "grows"): True}),
    "a growing buffer without units": ("M33", {r("state", "grow"): 0, r("state", "grow_at"): 0}),
    "initial content of io": ("M34", {r("io", "initial"): [{"offset": 0, "size": 64, "blob": TABLE}]}),
    "initial content beyond the region": ("M34", {r("constants", "initial/0/offset"): 512 - 63}),
    "empty initial content": ("M34", {r("constants", "initial/0/size"): 0}),
    "initial content that overlaps": ("M34", {r("constants", "initial"): more(
        {"offset": 63, "size": 64, "blob": TABLE})}),
    "a buffer of no region": ("M35", {b("constants/table", "role"): "windows"}),
    "a buffer between alignments": ("M35", {b("io/step/1/in/x", "offset"): 16}),
    "a buffer beyond its region": ("M35", {b("constants/table", "size"): 513}),
    "a buffer at an offset that wraps": ("M35", {b("constants/table", "offset"): (1 << 53) - 256}),
    "two buffers of one name": ("M35", {b("io/step/1/in/x", "name"): "io/step/1/out/y"}),
    "buffers that touch": ("M36", {b("io/step/1/in/x", "size"): 256 + 16, b("io/step/1/in/x", "shape"): [68]}),
    "buffers that overlap": ("M36", {b("io/step/1/out/y", "offset"): 0}),
    "an unknown dtype": ("M37", {b("constants/table", "dtype"): "i128"}),
    "a shape larger than its buffer": ("M37", {b("state/history", "shape"): [4, 9]}),
    "a shape whose product wraps to 0": ("M37", {b("constants/table", "shape"): [1 << 32, 1 << 32]}),
    "a shape whose product wraps at 2^63": ("M37", {b("constants/table", "shape"): [1 << 31, 1 << 31, 2]}),
    "a shape smaller than its buffer in io": ("M37", {b("io/step/1/in/x", "shape"): [1, 3]}),
    "a function of a module that is not there": ("M38", {"functions/0/module": 1}),
    "one image twice": ("M38", {"modules": lambda m: [*m, *m], "functions": more(
        {"name": "more", "module": 1, "param_bytes": 8, "pointers": [0], "constants": []})}),
    "one function twice": ("M38", {"functions": lambda f: [*f, *f]}),
    "a module without function": ("M38", {"modules": lambda m: [*m, m[0] | {"blob": OTHER}]}),
    "parameters beyond the limit": ("M38", {"functions/0/param_bytes": MAX_PARAM_BYTES + 1}),
    "a pointer beyond the parameters": ("M38", {"functions/0/pointers": [8]}),
    "a pointer between alignments": ("M38", {"functions/0/pointers": [4], "functions/0/param_bytes": 16}),
    "pointers out of order": ("M38", {"functions/0/pointers": [8, 0], "functions/0/param_bytes": 16}),
    "a pointer twice": ("M38", {"functions/0/pointers": [0, 0]}),
    "no graph": ("M40", {"graphs": []}),
    "two graphs of one name": ("M40", {"graphs/1/name": "step/1"}),
    "unsupported flags": ("M40", {"graphs/0/flags": 2}),
    "a graph without nodes": ("M40", {"graphs/0/nodes": 0}),
    "two entries of one name": ("M41", {"entries": lambda e: [*e, *e]}),
    "an entry without buckets": ("M41", {"entries": more({"name": "none", "buckets": []})}),
    "buckets of other dimensions": ("M41", {f"{BUCKET}/shape": [["columns", 1]]}),
    "one dimension twice": ("M41", {f"{BUCKET}/shape": [["rows", 1], ["rows", 1]],
                                    "entries/0/buckets/1/shape": [["rows", 2], ["rows", 2]]}),
    "an extent of 0": ("M41", {f"{BUCKET}/shape": [["rows", 0]]}),
    "buckets out of order": ("M41", {"entries/0/buckets": swap(0, 1)}),
    "two buckets of one shape": ("M41", {f"{BUCKET}/shape": [["rows", 2]]}),
    "a bucket without segments": ("M41", {f"{BUCKET}/segments": []}),
    "a host step": ("M41", {f"{BUCKET}/segments/0/kind": "host"}),
    "a graph that is not there": ("M41", {f"{BUCKET}/segments/0/graph": 2}),
    "a graph in two buckets": ("M41", {f"{BUCKET}/segments/0/graph": 1}),
    "a field in a buffer that is not there": ("M42", {f"{BUCKET}/inputs/0/buffer": 99}),
    "a field outside io": ("M42", {f"{BUCKET}/inputs/0/buffer": BUFFERS["state/history"]}),
    "two inputs of one name": ("M42", {f"{BUCKET}/inputs": more({"name": "x", "buffer": BUFFERS["io/step/2/in/x"]})}),
    "two outputs of one name": ("M42", {f"{BUCKET}/outputs": more({"name": "y", "buffer": BUFFERS["io/step/2/in/x"]})}),
    "one buffer in two fields": ("M42", {f"{BUCKET}/outputs/0/buffer": IN}),
    "a cap below 1 MiB": ("M43", {"weights/cap": (1 << 20) - 1}),
    "a slice missing": ("M43", {"weights/slices": []}),
    "a slice twice": ("M43", {"weights/slices": lambda s: [*s, *s]}),
    "a slice that begins late": ("M43", {"weights/slices/0/offset": 1}),
    "a slice that ends early": ("M43", {"weights/slices/0/size": plus(-1)}),
    "more weights than slices": ("M43", {"weights/size": plus(1), r("weights", "size"): plus(1)}),
    "weights without end": ("M44", {"weights/size": MAX_INTEGER}),
    "weights in no region": ("M44", {
        r("scratch", "size"): 1 << 20, "regions": without(0), TENSORS: [],
        "buffers": lambda all: [x | {"role": x["role"].replace("weights", "scratch")} for x in all]}),
    "weights larger than their region": ("M44", {r("weights", "size"): plus(-1), b("weights/rest", "size"): plus(-1),
                                                 b("weights/rest", "shape"): [1]}),
    "two tensors of one name": ("M45", {f"{TENSORS}/0/name": "rest"}),
    "a tensor outside of every buffer": ("M45", {f"{TENSORS}/0/offset": 512 + 256}),
    "a tensor between alignments": ("M45", {f"{TENSORS}/2/offset": plus(1), f"{TENSORS}/2/size": plus(-1),
                                            f"{TENSORS}/2/shape/0": plus(-1)}),
    "a tensor larger than its shape": ("M45", {f"{TENSORS}/0/shape": [16, 7]}),
    "a tensor smaller than its shape": ("M45", {f"{TENSORS}/0/shape": [16, 9]}),
    "a tensor of an unknown dtype": ("M45", {f"{TENSORS}/2/dtype": "u9"}),
    "a tensor in an unknown layout": ("M45", {f"{TENSORS}/1/layout": "q2_k"}),
    "a packed tensor of floats": ("M45", {f"{TENSORS}/1/dtype": "f32"}),
    "a packed tensor with half a block": ("M45", {f"{TENSORS}/1/shape": [8, 16]}),
    "a packed tensor without shape": ("M45", {f"{TENSORS}/1/shape": []}),
    "tensors that overlap in part": ("M45", {f"{TENSORS}/3/shape": [8, 8], f"{TENSORS}/3/size": 256}),
    "tied tensors with other content": ("M45", {f"{TENSORS}/3/stored": OTHER}),
    "choices out of order": ("M47", {"choices": swap(0, 1)}),
    "a choice twice": ("M47", {"choices": lambda c: [c[0], c[0]]}),
    "a self-test missing": ("M48", {"self_tests": without(1)}),
    "self-tests out of order": ("M48", {"self_tests": swap(0, 1)}),
    "a self-test of no graph": ("M48", {"self_tests/1/graph": 2}),
    "one case": ("M48", {CASES: without(1, 2)}),
    "cases with equal inputs": ("M48", {CASES: without(1)}),
    "units beyond the span": ("M48", {"self_tests/0/cases/0/units": (1 << 40) // 256 * 2}),
    "unknown results": ("M49", {f"{CASES}/0/outputs": UNKNOWN_DIGEST}),
    "an unknown state": ("M49", {f"{CASES}/0/state": UNKNOWN_DIGEST}),
    "unknown inputs": ("M49", {f"{CASES}/0/inputs": UNKNOWN_DIGEST}),
    "a vocabulary of 0": ("M50", {"text/vocabulary": 0, "text/eos": []}),
    "a context of 0": ("M50", {"text/context": 0}),
    "blocks of 0 tokens": ("M50", {"text/block_tokens": 0}),
    "a concurrency of 0": ("M50", {"text/concurrency": 0}),
    "an end of text beyond the vocabulary": ("M50", {"text/eos": [0, 32]}),
    "a beginning of text beyond the vocabulary": ("M50", {"text/bos": 32}),
    "blobs out of order": ("M51", {"blobs": swap(0, 1)}),
    "a blob twice": ("M51", {"blobs": lambda all: [all[0], *all]}),
    "a blob that nothing refers to": ("M51", {"blobs": lambda all: sorted(
        [*all, {"digest": OTHER, "size": 1}], key=lambda blob: blob["digest"])}),
    "a blob that is not listed": ("M51", {"blobs": without(0)}),
    "an image of another size": ("M51", {"modules/0/size": plus(1)}),
    "a tokenizer that is not listed": ("M51", {"text/tokenizer": OTHER}),
    "inputs of another size": ("M51", {f"{BUCKET}/inputs": []}),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_core_that_means_something_else_is_refused(core: Core, name: str) -> None:
    """M5, M30, M31, M32, M33, M34, M35, M36, M37, M38, M40, M41, M42, M43, M44, M45, M47,
    M48, M49, M50, M51, M52, M53"""
    rule, changes = REFUSED[name]
    record = altered(core, changes)
    assert product_verdict(record) == rule
    assert independent_verdict(record) == rule


def test_the_unaltered_core_is_accepted(core: Core) -> None:
    """The twin of every refusal above."""
    assert product_verdict(core) == ""
    assert independent_verdict(core) == ""


PARAMS = {"functions/0/param_bytes": MAX_PARAM_BYTES}
ALLOWED: dict[str, Change] = {
    "a CUDA core": CUDA,
    "variables of a CUDA module": CUDA | {GLOBALS: [variable("_ZN3fooE"), variable("counter")]},
    "limits of a CUDA context": CUDA | {"limits": [["heap", 8 << 20], ["stack", 0]]},
    "the last slot": {
        "slot": 7,
        "regions": lambda all: [r | {"base": hex(int(r["base"], 16) + 7 * SLOT_STRIDE)} for r in all],
    },
    "fast numerics": {"numerics": "fast"},
    "sixteen ranks": {"target/ranks": 16},
    "a span up to the end of the slot": {r("state", "span"): SLOT_SPAN - 10 * (256 << 30)},
    "a span up to the next region": {r("weights", "span"): 4 * (256 << 30)},
    "a region with nothing but padding": {r("constants", "size"): 1 << 20},
    "content at the end of its region": {r("constants", "initial/0/offset"): 512 - 64},
    "a buffer up to its region's end": {b("constants/table", "size"): 512},
    "a gap of 256 bytes": {b("io/step/1/out/y", "size"): 256, b("io/step/1/out/y", "shape"): [64]},
    "content in scratch": {r("scratch", "initial"): [{"offset": 0, "size": 64, "blob": TABLE}]},
    "buffers of scratch that share addresses": {b("scratch/copy/0/1", "offset"): 0},
    "the largest parameters": PARAMS,
    "pointers without end": {"functions/0/param_bytes": 64, "functions/0/pointers": list(range(0, 64, 8))},
    "flags 9": {"graphs/0/flags": 9},
    "two dimensions": {
        f"{BUCKET}/shape": [["rows", 2], ["columns", 1]],
        "entries/0/buckets/1/shape": [["rows", 2], ["columns", 2]],
    },
    "no text": {"text": None, "blobs": lambda all: [x for x in all if x["size"] not in {17, 14}]},
    "no choices": {"choices": []},
    "a cap of 64 GiB": {"weights/cap": 64 << 30},
    "tied tensors of equal content": {f"{TENSORS}/3/source": OTHER},
    "as many units as fit": {"self_tests/0/cases/0/units": ((6 * (256 << 30)) - (8 << 30) - 384) // 256},
    "two cases": {CASES: without(2)},
    "no beginning of text": {"text/bos": -1},
    "the last token": {"text/eos": [31], "text/bos": 31},
    "a scalar": {b("constants/table", "shape"): []},
    "an empty shape": {b("constants/table", "shape"): [0, 7]},
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_is_just_allowed_is_accepted(core: Core, name: str) -> None:
    """M30 to M53: the other side of each limit."""
    record = altered(core, ALLOWED[name])
    assert product_verdict(record) == ""
    assert independent_verdict(record) == ""


def test_only_a_draft_may_hold_unknown_results(core: Core) -> None:
    """M49"""
    record = altered(core, {f"{CASES}/0/outputs": UNKNOWN_DIGEST, f"{CASES}/0/state": UNKNOWN_DIGEST})
    assert product_verdict(record, draft=True) == ""
    assert product_verdict(record) == "M49"
    unknown_inputs = altered(core, {f"{CASES}/0/inputs": UNKNOWN_DIGEST})
    assert product_verdict(unknown_inputs, draft=True) == "M49"


def test_a_blob_that_is_read_into_memory_is_at_most_1_gib(core: Core) -> None:
    """M51"""
    assert core.text is not None
    tokenizer = core.text.tokenizer

    def sized(size: int) -> Core:
        blobs = tuple(Blob(digest=x.digest, size=size) if x.digest == tokenizer else x for x in core.blobs)
        return msgspec.structs.replace(core, blobs=blobs)

    assert product_verdict(sized(MAX_BLOB_BYTES)) == independent_verdict(sized(MAX_BLOB_BYTES)) == ""
    assert product_verdict(sized(MAX_BLOB_BYTES + 1)) == independent_verdict(sized(MAX_BLOB_BYTES + 1)) == "M51"


def test_a_shape_has_at_most_16_extents() -> None:
    """M4: a product of many large extents would take for ever."""
    record = tiny_core().core
    assert altered(record, {b("constants/table", "shape"): [1] * 16}).buffers
    with pytest.raises(msgspec.ValidationError):
        altered(record, {b("constants/table", "shape"): [1] * 17})


@pytest.mark.parametrize(
    "name", ["io/../x", "io/./x", "..", "io/x/", "/io", "io//x", "", "io/\u00e4", "io\\x", "a b", "a\n"]
)
def test_a_buffer_whose_name_is_none_is_refused(core: Core, name: str) -> None:
    """M4"""
    record = altered(core, {b("io/step/1/in/x", "name"): name})
    assert product_verdict(record) == "M4"
    with pytest.raises(independent_reader.Refused) as refused:
        independent_reader.document(encode(record), "core")
    assert refused.value.rule == "M4"


@pytest.mark.parametrize("name", ["io/...", "io/.x", "x..", "~", "io/!/x"])
def test_a_buffer_by_any_other_name_is_accepted(core: Core, name: str) -> None:
    """M4"""
    record = altered(core, {b("io/step/1/in/x", "name"): name})
    assert product_verdict(record) == independent_verdict(record) == ""
    independent_reader.document(encode(record), "core")
