"""Every constant that can change a byte of a core. docs/core-format.md is the normative text.

Names here and nowhere else: file names, versions, limits, column names and types, region roles, address layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FORMAT: Final = 0
KERNEL_ABI: Final = 1

CORE_JSON: Final = "core.json"
PROVENANCE_JSON: Final = "provenance.json"
SIGNATURE: Final = "core.sig"
GRAPHS: Final = "graphs.safetensors"
BLOBS: Final = "blobs"

MAX_JSON_BYTES: Final = 64 << 20
MAX_JSON_DEPTH: Final = 32
MAX_SIGNATURE_BYTES: Final = 1 << 20
MAX_INTEGER: Final = (1 << 53) - 1
MAX_NAME: Final = 4096  # characters
MAX_DIMENSIONS: Final = 16
MAX_CORE_NAME: Final = 128  # characters
MAX_GRAPHS_BYTES: Final = 4 << 30
MAX_HEADER_BYTES: Final = 1 << 20
MAX_BLOB_BYTES: Final = 1 << 30  # of a blob that is not a weight slice
MAX_PARAM_BYTES: Final = 32764  # of one kernel's parameters, as CUDA allows

FEATURES: Final[frozenset[str]] = frozenset()  # what a reader of this version knows
UNKNOWN_DIGEST: Final = "0" * 64  # "not known yet", in drafts only

PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
DRAFT_PAYLOAD_TYPE: Final = "application/vnd.heliograph.draft+json"
STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "urn:x-heliograph:core:v0"
DRAFT_PREDICATE_TYPE: Final = "urn:x-heliograph:draft:v0"

DRAFT_PREFIX: Final = ".draft-"  # folders of drafts, beside the cores
STORE: Final = ".store"  # blobs shared by the cores of a folder, by hard links

MIB: Final = 1 << 20
SLICE_ALIGNMENT: Final = 2 * MIB  # weight files are cut at multiples of this (1 MiB when the cap is smaller)
MIN_CAP: Final = MIB
CHUNK_BYTES: Final = 4 * MIB  # one BLAKE3 digest each
DEFAULT_CAP: Final = 64 << 30  # bytes of one weight file at most
BUFFER_ALIGNMENT: Final = 256  # also the padding between buffers: they never touch

# ---- addresses -------------------------------------------------------------------------------------------------
# Eight slots of 4 TiB, 12 TiB apart. A region starts at a multiple of 256 GiB in its slot plus 4 GiB, so the high
# word of its addresses is 64 m + 1 and, up to 252 GiB, never a multiple of 64 (a likely model dimension).
SLOTS: Final = 8
SLOT_SPAN: Final = 4 << 40
SLOT_BASE: Final = 0x1001_0000_0000
SLOT_STRIDE: Final = 12 << 40
REGION_UNIT: Final = 256 << 30
SPAN_UNIT: Final = 2 * MIB  # spans are multiples of it: every device can reserve them
REGION_PLACES: Final[Mapping[str, tuple[int, int]]] = {  # role: (first unit, units) in the slot
    "weights": (0, 4),
    "constants": (4, 1),
    "persistent": (5, 1),
    "io": (6, 1),
    "scratch": (7, 1),
    "windows": (8, 2),
    "state": (10, 6),
}
ROLES: Final = tuple(REGION_PLACES)
READ_ONLY_ROLES: Final = frozenset({"weights", "constants"})
INITIAL_ROLES: Final = frozenset({"constants", "persistent", "scratch"})  # whose content can be kept by value

DTYPES: Final[Mapping[str, int]] = {  # bytes of an element
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2,
    "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u64": 8, "u32": 4, "u8": 1, "bool": 1,
}  # fmt: skip
LAYOUTS: Final[Mapping[str, tuple[int, int]]] = {  # packed layouts: elements of a block, bytes of a block
    "q8_0": (32, 34),
    "q4_1": (32, 20),
}
FLAGS: Final = (0, 1, 8, 9)  # instantiation flags

# ---- what only a CUDA device has -------------------------------------------------------------------------------
CUDA_NODE_ATTRIBUTES: Final[Mapping[int, int]] = {  # id of a kernel node attribute: bytes of its members
    1: 28,  # access policy window
    2: 4,  # cooperative
    4: 12,  # cluster dimension
    5: 4,  # cluster scheduling policy
    8: 4,  # priority
    9: 2,  # memory synchronisation domain map
    10: 4,  # memory synchronisation domain
    11: 12,  # preferred cluster dimension
    14: 4,  # preferred shared memory carve-out
}
CUDA_ACCESS_WINDOW: Final = 1  # the attribute whose value begins with an address and a size
CUDA_FUNCTION_ATTRIBUTES: Final = (8, 9, 11, 12, 13, 14, 15)  # those that can be set
CUDA_CARVE_OUT: Final = 9  # the function attribute that may be -1
CUDA_LIMITS: Final = ("heap", "l2_fetch", "l2_persisting", "pending_launches", "printf", "stack", "sync_depth")
CUDA_EDGES: Final = ((0, 0), (1, 1), (2, 0), (2, 1))  # port of the source, type


def region_base(slot: int, role: str) -> int:
    """The address of a region in a slot. The span ends 4 GiB before the next region's unit."""
    return SLOT_BASE + slot * SLOT_STRIDE + REGION_PLACES[role][0] * REGION_UNIT


def region_span(role: str) -> int:
    return REGION_PLACES[role][1] * REGION_UNIT - (8 << 30)


# ---- graphs.safetensors: column name -> (type, trailing shape) ---------------------------------------------------
# G graphs, N nodes, K kernel nodes, M memsets, C copies, E edges, R references, A attributes, F functions, S strings.
COLUMNS: Final[Mapping[str, tuple[str, tuple[int, ...]]]] = {
    "graph.nodes": ("U32", ()),  # [G+1] first node of each graph
    "graph.edges": ("U32", ()),  # [G+1]
    "graph.collectives": ("U32", ()),  # [G+1]
    "graph.flags": ("U32", ()),  # [G] instantiation flags
    "node.kind": ("U8", ()),  # [N] NodeKind
    "node.row": ("U32", ()),  # [N] row in the table of its kind (0 for empty nodes)
    "node.order": ("U32", ()),  # [N] place in the capture order of its graph
    "node.origin": ("U32", ()),  # [N] string: what recorded it
    "kernel.function": ("U32", ()),  # [K] function of core.json
    "kernel.grid": ("U32", (3,)),
    "kernel.block": ("U32", (3,)),
    "kernel.shared": ("U32", ()),
    "kernel.form": ("U8", ()),  # 0 array of pointers, 1 one buffer
    "kernel.params": ("U64", ()),  # [K+1] into param.bytes
    "kernel.refs": ("U32", ()),  # [K+1] into ref.*
    "kernel.attrs": ("U32", ()),  # [K+1] into attr.*
    "param.bytes": ("U8", ()),
    "ref.at": ("U32", ()),  # byte offset in the node's parameters
    "ref.buffer": ("U32", ()),  # buffer of core.json
    "ref.offset": ("U64", ()),  # byte offset in the buffer
    "attr.id": ("U32", ()),
    "attr.value": ("U8", (64,)),
    "function.attrs": ("U32", ()),  # [F+1] into function.attr.*
    "function.attr.id": ("U32", ()),
    "function.attr.value": ("I64", ()),
    "memset.address": ("U64", ()),
    "memset.value": ("U32", ()),
    "memset.element": ("U32", ()),  # bytes of the value: 1, 2, 4
    "memset.width": ("U64", ()),  # elements
    "memset.height": ("U64", ()),
    "memset.pitch": ("U64", ()),
    "memset.buffer": ("U32", ()),
    "memset.offset": ("U64", ()),
    "copy.to": ("U64", ()),
    "copy.from": ("U64", ()),
    "copy.bytes": ("U64", ()),
    "copy.to.buffer": ("U32", ()),
    "copy.to.offset": ("U64", ()),
    "copy.from.buffer": ("U32", ()),
    "copy.from.offset": ("U64", ()),
    "edge.from": ("U32", ()),  # node number in its graph
    "edge.to": ("U32", ()),
    "edge.data": ("U8", (8,)),
    "collective.node": ("U32", ()),  # node number in its graph
    "collective.consumer": ("U32", ()),
    "string.offsets": ("U64", ()),  # [S+1]
    "string.bytes": ("U8", ()),  # UTF-8
    "weights.chunks": ("U8", (32,)),  # BLAKE3 of each 4 MiB chunk of the weights region image
}
