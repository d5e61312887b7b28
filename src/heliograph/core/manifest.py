"""The types of core.json and provenance.json. Everything that decides behaviour is in :class:`Core`.

Encoding and decoding (canonical JSON, limits, refusals) is in ``core.encoding``; numbers that are not integers are
``float.hex()`` strings, addresses are hexadecimal strings, digests are 64 lower-case hex digits.
"""

from __future__ import annotations

import msgspec

Digest = str    # BLAKE3 of a blob, 64 lower-case hex digits
Address = str   # "0x100100000000"


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of everything in the two JSON files: immutable, every field named, no other field."""


class Target(Record, frozen=True, kw_only=True):
    """What the core runs on. Host: instruction-set level and kernel ABI. CUDA: compute capability and limits."""

    device: str               # "host" | "cuda"
    arch: str                 # "x86-64-v3" | "sm_90"
    abi: int                  # kernel ABI (host), 0 on CUDA
    ranks: int
    processors: int           # SM count; 0 on the host
    shared_optin: int         # bytes; 0 on the host
    driver: int               # lowest driver version; 0 on the host


class Region(Record, frozen=True, kw_only=True):
    role: str
    base: Address
    span: int
    size: int                 # bytes mapped at load, without what grows
    grow: int                 # bytes that one more unit of growth adds (a KV block); 0: fixed
    grow_at: int              # offset at which the growing buffer starts
    initial: tuple[Slice, ...]  # content restored at load (constants, persistent); the weights' are in `weights`


class Slice(Record, frozen=True, kw_only=True):
    """Raw bytes of a region's image."""

    offset: int
    size: int
    blob: Digest


class Buffer(Record, frozen=True, kw_only=True):
    """A named, typed place in a region. Names are op instance path, output, bucket."""

    name: str
    role: str
    offset: int
    size: int                 # bytes; of a growing buffer: of one unit
    dtype: str
    shape: tuple[int, ...]    # of a growing buffer: of one unit, without the growing dimension
    grows: bool


class Module(Record, frozen=True, kw_only=True):
    blob: Digest
    family: str
    origin: str               # "heliograph host kernels x86-64-v3", or the vendor library it came from
    size: int


class Function(Record, frozen=True, kw_only=True):
    name: str
    module: int
    param_bytes: int
    pointers: tuple[int, ...]            # byte offsets (host); empty on CUDA
    constants: tuple[tuple[str, str], ...]  # compile-time constants, where known


class Graph(Record, frozen=True, kw_only=True):
    name: str                 # "decode/8"
    flags: int
    nodes: int
    edges: int


class Field(Record, frozen=True, kw_only=True):
    """One named input or output of a bucket."""

    name: str
    buffer: int


class Segment(Record, frozen=True, kw_only=True):
    kind: str                 # "graph" | "host"
    graph: int


class Bucket(Record, frozen=True, kw_only=True):
    shape: tuple[tuple[str, int], ...]   # (("rows", 8),)
    segments: tuple[Segment, ...]
    inputs: tuple[Field, ...]
    outputs: tuple[Field, ...]


class Entry(Record, frozen=True, kw_only=True):
    name: str
    buckets: tuple[Bucket, ...]          # smallest first


class Tensor(Record, frozen=True, kw_only=True):
    """A tensor of the weights region."""

    name: str
    offset: int
    size: int
    dtype: str                # f32 | bf16 | ... | u8 for packed layouts
    shape: tuple[int, ...]
    layout: str               # "plain" | "q8_0" | "q4_1"
    source: Digest            # BLAKE3 of the bytes in the source file
    stored: Digest            # BLAKE3 of the bytes in the region


class Weights(Record, frozen=True, kw_only=True):
    cap: int
    size: int                 # bytes of the region image
    slices: tuple[Slice, ...]
    tensors: tuple[Tensor, ...]


class Choice(Record, frozen=True, kw_only=True):
    op: str
    shape: str
    variant: str


class Case(Record, frozen=True, kw_only=True):
    """One run of a graph's self-test."""

    inputs: Digest            # blob: the bytes of the bucket's inputs, in the order of its fields
    outputs: Digest           # BLAKE3 over the outputs, in the order of the bucket's fields
    state: Digest             # BLAKE3 over the units of growth in use and the fixed part of `state`


class SelfTest(Record, frozen=True, kw_only=True):
    """Before the first case the fixed part of `state` is zero and its first `units` units hold the test pattern."""

    graph: int
    units: int
    cases: tuple[Case, ...]


class Text(Record, frozen=True, kw_only=True):
    """What a language model's core says about text; absent for other models."""

    tokenizer: Digest         # blob: tokenizer.json
    chat_template: Digest     # blob: minijinja source
    bos: int                  # -1: none
    eos: tuple[int, ...]
    vocabulary: int
    context: int              # tokens
    block_tokens: int         # tokens of one KV block
    concurrency: int          # rows
    bos_text: str
    eos_text: str


class Blob(Record, frozen=True, kw_only=True):
    digest: Digest
    size: int


class Core(Record, frozen=True, kw_only=True):
    format: int
    features: tuple[str, ...]            # required features, sorted
    model: str                           # architecture name, e.g. "llama" or the class of the module
    target: Target
    numerics: str                        # "row-invariant" | "fast"
    slot: int
    regions: tuple[Region, ...]
    buffers: tuple[Buffer, ...]
    modules: tuple[Module, ...]
    functions: tuple[Function, ...]
    graphs: tuple[Graph, ...]
    entries: tuple[Entry, ...]
    graphs_file: Blob                    # digest and size of graphs.safetensors
    weights: Weights
    choices: tuple[Choice, ...]
    self_tests: tuple[SelfTest, ...]
    text: Text | None
    blobs: tuple[Blob, ...]              # every file in blobs/, sorted by digest


class Item(Record, frozen=True, kw_only=True):
    name: str
    value: str


class Phase(Record, frozen=True, kw_only=True):
    name: str
    nanoseconds: int


class Provenance(Record, frozen=True, kw_only=True):
    """How a core was made. Not part of the core digest."""

    format: int
    created: str                         # "2026-11-30T09:00:00Z"
    command: tuple[str, ...]             # paths replaced by content digests
    commit: str                          # source commit, or ""
    uncommitted: str                     # SHA-256 of uncommitted changes, or ""
    environment: tuple[Item, ...]        # listed variables only
    compiler: tuple[Item, ...]
    versions: tuple[Item, ...]
    libraries: tuple[Item, ...]          # native libraries that took part: name, SHA-256
    sources: tuple[Item, ...]            # digests of kernel sources
    device: tuple[Item, ...]
    source_files: tuple[Item, ...]       # the model's files: name, BLAKE3
    tuning_cache: str
    seed: int
    retain: str
    costs: tuple[Item, ...]              # executables, host and device bytes, peak memory
    phases: tuple[Phase, ...]
    tuning_log: tuple[str, ...]
    findings: tuple[str, ...]            # what the checker merged
