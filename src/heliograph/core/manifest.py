"""The types of core.json and provenance.json. Everything that decides behaviour is in :class:`Core`.

Encoding and decoding (canonical JSON, limits, refusals) is in ``core.encoding``; numbers that are not integers are
``float.hex()`` strings, addresses are hexadecimal strings, digests are 64 lower-case hex digits.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from heliograph.core.format import MAX_DIMENSIONS, MAX_INTEGER, MAX_NAME

_PART = r"(?!\.\.?(?:/|\Z))[!-.0-\[\]-~]+"  # printable ASCII without "/" and "\", not "." or ".."

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]  # BLAKE3 unless stated otherwise
Address = Annotated[str, msgspec.Meta(pattern=r"^0x[1-9a-f][0-9a-f]{0,15}\Z")]  # "0x100100000000"
NAME = rf"^{_PART}(?:/{_PART})*\Z"
Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME, pattern=NAME)]
Shape = Annotated[tuple[Count, ...], msgspec.Meta(max_length=MAX_DIMENSIONS)]


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    """Base of everything in the two JSON files: immutable, every field named, no other field.

    Such trees hold no cycles, so the collector need not walk their many thousand nodes.
    """


class Target(Record, frozen=True, kw_only=True):
    """What the core runs on. Host: instruction-set level and kernel ABI. CUDA: compute capability and limits."""

    device: str  # "host" | "cuda"
    arch: str  # "x86-64-v3" | "sm_90"
    abi: Count  # kernel ABI (host), 0 on CUDA
    ranks: Count
    processors: Count  # SM count; 0 on the host
    shared_optin: Count  # bytes; 0 on the host
    driver: Count  # lowest driver version; 0 on the host


class Region(Record, frozen=True, kw_only=True):
    role: str
    base: Address
    span: Count
    size: Count  # bytes mapped at load, without what grows
    grow: Count  # bytes that one more unit of growth adds (a KV block); 0: fixed
    grow_at: Count  # offset at which the growing buffer starts
    initial: tuple[Slice, ...]  # content that is there at load; that of weights is in `weights`


class Slice(Record, frozen=True, kw_only=True):
    """Raw bytes of a region's image."""

    offset: Count
    size: Count
    blob: Digest


class Buffer(Record, frozen=True, kw_only=True):
    """A named, typed place in a region. Names are op instance path, output, bucket."""

    name: Annotated[str, msgspec.Meta(max_length=MAX_NAME)]  # a Name: `rules.memory` looks at all of them at once
    role: str
    offset: Count
    size: Count  # bytes; of a growing buffer: of one unit
    dtype: str
    shape: Shape  # of a growing buffer: of one unit, without the growing dimension
    grows: bool


class Global(Record, frozen=True, kw_only=True):
    """A variable of a CUDA module, and what it holds before the first launch."""

    name: Name  # its symbol
    size: Count
    blob: Digest


class Module(Record, frozen=True, kw_only=True):
    blob: Digest
    family: Name
    origin: str  # "heliograph host kernels x86-64-v3", or the vendor library it came from
    size: Count
    globals: tuple[Global, ...]  # sorted by name; empty on the host


class Function(Record, frozen=True, kw_only=True):
    name: Name
    module: Count
    param_bytes: Count
    pointers: tuple[Count, ...]  # byte offsets (host); empty on CUDA
    constants: tuple[tuple[str, str], ...]  # compile-time constants, where known


class Graph(Record, frozen=True, kw_only=True):
    name: Name  # "decode/8"
    flags: Count
    nodes: Count
    edges: Count


class Field(Record, frozen=True, kw_only=True):
    """One named input or output of a bucket."""

    name: Name
    buffer: Count


class Segment(Record, frozen=True, kw_only=True):
    kind: str  # "graph" | "host"
    graph: Count


class Bucket(Record, frozen=True, kw_only=True):
    shape: tuple[tuple[str, Count], ...]  # (("rows", 8),)
    segments: tuple[Segment, ...]
    inputs: tuple[Field, ...]
    outputs: tuple[Field, ...]


class Entry(Record, frozen=True, kw_only=True):
    name: Name
    buckets: tuple[Bucket, ...]  # smallest first


class Tensor(Record, frozen=True, kw_only=True):
    """A tensor of the weights region."""

    name: Name
    offset: Count
    size: Count
    dtype: str  # f32 | bf16 | ... | u8 for packed layouts
    shape: Shape
    layout: str  # "plain" | "q8_0" | "q4_1"
    source: Digest  # BLAKE3 of the bytes in the source file
    stored: Digest  # BLAKE3 of the bytes in the region


class Weights(Record, frozen=True, kw_only=True):
    cap: Count
    size: Count  # bytes of the region image
    slices: tuple[Slice, ...]
    tensors: tuple[Tensor, ...]


class Choice(Record, frozen=True, kw_only=True):
    op: Name
    shape: str
    variant: Name


class Case(Record, frozen=True, kw_only=True):
    """One run of a graph's self-test."""

    inputs: Digest  # blob: the bytes of the bucket's inputs, in the order of its fields
    outputs: Digest  # BLAKE3 over the outputs, in the order of the bucket's fields
    state: Digest  # BLAKE3 over the fixed part of `state` and units 1 to `units` - 1 of growth
    units: Count  # of growth that the run may touch


class SelfTest(Record, frozen=True, kw_only=True):
    """Before the first case the fixed part of `state` is zero and the units of the cases hold the test pattern."""

    graph: Count
    cases: tuple[Case, ...]


class Text(Record, frozen=True, kw_only=True):
    """What a language model's core says about text; absent for other models."""

    tokenizer: Digest  # blob: tokenizer.json
    chat_template: Digest  # blob: minijinja source
    bos: Annotated[int, msgspec.Meta(ge=-1, le=MAX_INTEGER)]  # -1: none
    eos: tuple[Count, ...]
    vocabulary: Count
    context: Count  # tokens
    block_tokens: Count  # tokens of one KV block
    concurrency: Count  # rows
    bos_text: str
    eos_text: str


class Blob(Record, frozen=True, kw_only=True):
    digest: Digest
    size: Count


class Core(Record, frozen=True, kw_only=True):
    format: Count
    features: tuple[str, ...]  # required features, sorted
    model: str  # architecture name, e.g. "llama" or the class of the module
    target: Target
    limits: tuple[tuple[str, Count], ...]  # of the CUDA context, sorted by name; empty on the host
    numerics: str  # "row-invariant" | "fast"
    slot: Count
    regions: tuple[Region, ...]
    buffers: tuple[Buffer, ...]
    modules: tuple[Module, ...]
    functions: tuple[Function, ...]
    graphs: tuple[Graph, ...]
    entries: tuple[Entry, ...]
    graphs_file: Blob  # digest and size of graphs.safetensors
    weights: Weights
    choices: tuple[Choice, ...]
    self_tests: tuple[SelfTest, ...]
    text: Text | None
    blobs: tuple[Blob, ...]  # every file in blobs/, sorted by digest


class Item(Record, frozen=True, kw_only=True):
    name: str
    value: str


class Phase(Record, frozen=True, kw_only=True):
    name: str
    nanoseconds: Count


class Provenance(Record, frozen=True, kw_only=True):
    """How a core was made. Not part of the core digest."""

    format: Count
    created: str  # "2026-11-30T09:00:00Z"
    command: tuple[str, ...]  # paths replaced by content digests
    commit: str  # source commit, or ""
    uncommitted: str  # SHA-256 of uncommitted changes, or ""
    environment: tuple[Item, ...]  # listed variables only
    compiler: tuple[Item, ...]
    versions: tuple[Item, ...]
    libraries: tuple[Item, ...]  # native libraries that took part: name, SHA-256
    sources: tuple[Item, ...]  # digests of kernel sources
    device: tuple[Item, ...]
    source_files: tuple[Item, ...]  # the model's files: name, BLAKE3
    tuning_cache: str
    seed: Count
    retain: str
    costs: tuple[Item, ...]  # executables, host and device bytes, peak memory
    phases: tuple[Phase, ...]
    tuning_log: tuple[str, ...]
    findings: tuple[str, ...]  # what the checker merged
