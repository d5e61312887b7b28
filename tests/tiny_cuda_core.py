"""A small, valid core for a CUDA device, without torch. Its kernel images are host kernel modules that say they are for
CUDA, which the fake driver runs; so it passes its self-tests there.

Two buckets of one entry. Each graph clears a scratch buffer, copies x into it and on to y, counts in a persistent
buffer, adds x and scratch to z, and writes sevens into unit 1 of the growing state. It has what only a CUDA core has:
both forms of parameters, node and function attributes, dynamic shared memory, a programmatic edge, a variable of the
module, a context limit.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import replace

import msgspec

from heliograph.core.format import MIB, SLOT_STRIDE
from heliograph.core.layout import cuts, padded
from heliograph.core.manifest import (
    Blob,
    Bucket,
    Case,
    Core,
    Entry,
    Field,
    Function,
    Global,
    Graph,
    Module,
    Segment,
    SelfTest,
    Slice,
    Target,
    Weights,
)
from heliograph.core.templates import CopyNode, Edge, EmptyNode, GraphTemplate, KernelNode, MemsetNode, Node, Ref
from heliograph.runtime.patterns import state_period
from tiny_core import Places, TinyCore, digest, probe_image, provenance_of, text_of, weights_of

NAME = "tiny-cuda-tp1-202611300900"
ROWS = (1, 2)
UNIT = 256  # bytes of one unit of growing state
UNITS = 3  # that a case may touch
EM_CUDA = 190
TARGET = Target(device="cuda", arch="sm_90", abi=0, ranks=1, processors=132, shared_optin=232448, driver=13000)
FUNCTIONS = (("count", 8), ("add", 32), ("write", 16))
SHARED = 100 << 10  # more than a launch may have without asking
FUNCTION_ATTRIBUTES = (((8, SHARED),), (), ())
STACK = 1536
VARIABLE, CONTENT = "identity_word", bytes(range(8))
PROGRAMMATIC = bytes([1, 0, 1, 0, 0, 0, 0, 0])
PRIORITY = (8, struct.pack("<i", -1))


def cuda_image() -> bytes:
    """The probe module with a variable, and a function that takes local memory."""
    return as_cuda_image(probe_image(), f"global {VARIABLE} {len(CONTENT)} 0\nlocal add {STACK}\n")


def as_cuda_image(host: bytes, lines: str = "") -> bytes:
    """A host kernel module as an ELF file for a CUDA device, followed by ``lines`` that state its variables and what
    local memory its functions take. The fake driver sets the machine back."""
    image = bytearray(host)
    image[18:20] = EM_CUDA.to_bytes(2, "little")
    return bytes(image) + lines.encode() + b"\0"


def tiny_cuda_core(weight_bytes: int = 5 * MIB, cap: int = MIB, text: bool = False) -> TinyCore:
    """``weight_bytes``: of the weights image, 0 or at least 8 KiB; ``text``: with a tokenizer and a chat template."""
    blobs: dict[str, bytes] = {}

    def put(data: bytes) -> str:
        return blobs.setdefault(digest(data), data) and digest(data)

    image = random.Random(2).randbytes(weight_bytes)
    slices = tuple(Slice(offset=at, size=size, blob=put(image[at : at + size])) for at, size in cuts(len(image), cap))
    places = Places()
    weights: Weights = weights_of(places, image, slices, cap)
    places.add("constants", "constants/table", 64)
    places.add("persistent", "persistent/counter", 8, "u64", (1,))
    places.add("state", "state/history", 128, "i32", (4, 8))
    places.grow("state/kv", UNIT)
    for rows in ROWS:
        for side, name in (("in", "x"), ("in", "scale"), ("out", "y"), ("out", "z")):
            places.add("io", f"io/step/{rows}/{side}/{name}", 16 * rows, "f32", (rows, 4))
        places.share("scratch", f"scratch/copy/0/{rows}", 16 * rows, "f32", (rows, 4))
    initial = {
        "constants": (Slice(offset=0, size=64, blob=put(bytes(range(64)))),),
        "persistent": (Slice(offset=0, size=8, blob=put(bytes(8))),),
    }
    core = Core(
        format=0,
        features=(),
        model="tiny",
        target=TARGET,
        limits=(("stack", STACK),),
        numerics="row-invariant",
        slot=0,
        regions=places.regions(initial),
        buffers=tuple(places.buffers),
        modules=(module_of(put),),
        functions=tuple(
            Function(name=name, module=0, param_bytes=size, pointers=(), constants=()) for name, size in FUNCTIONS
        ),
        graphs=tuple(Graph(name=f"step/{rows}", flags=9, nodes=7, edges=6) for rows in ROWS),
        entries=(Entry(name="step", buckets=tuple(bucket_of(places, number) for number in range(len(ROWS)))),),
        graphs_file=Blob(digest="0" * 64, size=0),
        weights=weights,
        choices=(),
        self_tests=tuple(self_test_of(put, number) for number in range(len(ROWS))),
        text=text_of(put) if text else None,
        blobs=(),
    )
    graphs = tuple(graph_of(places, rows) for rows in ROWS)
    return TinyCore(core, provenance_of(), graphs, blobs, image, name=NAME, function_attributes=FUNCTION_ATTRIBUTES)


def module_of(put: Callable[[bytes], str]) -> Module:
    blob = put(cuda_image())
    return Module(
        blob=blob,
        family=f"cubin-{blob[:12]}",
        origin="libcublasLt.so.13",
        size=len(cuda_image()),
        globals=(Global(name=VARIABLE, size=len(CONTENT), blob=put(CONTENT)),),
    )


def bucket_of(places: Places, number: int) -> Bucket:
    rows = ROWS[number]

    def fields(side: str, *names: str) -> tuple[Field, ...]:
        return tuple(Field(name=name, buffer=places.index(f"io/step/{rows}/{side}/{name}")) for name in names)

    return Bucket(
        shape=(("rows", rows),),
        segments=(Segment(kind="graph", graph=number),),
        inputs=fields("in", "x", "scale"),
        outputs=fields("out", "y", "z"),
    )


def graph_of(places: Places, rows: int) -> GraphTemplate:
    names = {"x": f"io/step/{rows}/in/x", "s": f"scratch/copy/0/{rows}"}
    names |= {short: f"io/step/{rows}/out/{short}" for short in "yz"}
    at = {short: (places.address(name), places.index(name), 0) for short, name in names.items()}
    counter, kv = "persistent/counter", "state/kv"
    unit_1 = places.address(kv) + UNIT
    return GraphTemplate(
        nodes=(
            MemsetNode(f"tiny/clear, tiny.py:{rows}", *at["s"], element=4, width=4, height=rows, pitch=16 * (rows > 1)),
            CopyNode("tiny/copy", *at["s"], *at["x"], size=16 * rows),
            CopyNode("tiny/copy", *at["y"], *at["s"], size=16 * rows),
            KernelNode(
                origin="tiny/count",
                function=0,
                grid=(3, 2, 1),
                block=(32, 4, 1),
                shared=SHARED,
                params=struct.pack("<Q", places.address(counter)),
                refs=(Ref(at=0, buffer=places.index(counter), offset=0),),
                attrs=(PRIORITY,),
            ),
            KernelNode(
                origin="tiny/add",
                function=1,
                grid=(1, 1, 1),
                block=(64, 1, 1),
                form=1,
                params=struct.pack("<4Q", *(at[short][0] for short in "xsz"), 4 * rows),
                refs=tuple(Ref(at=8 * number, buffer=at[short][1], offset=0) for number, short in enumerate("xsz")),
            ),
            KernelNode(
                origin="tiny/write",
                function=2,
                grid=(4, 1, 1),
                params=struct.pack("<QQ", unit_1, 7),
                refs=(Ref(at=0, buffer=places.index(kv), offset=UNIT),),
            ),
            EmptyNode("tiny/join"),
        ),
        edges=(Edge(0, 1), Edge(1, 2), Edge(2, 4), Edge(3, 4, PROGRAMMATIC), Edge(4, 6), Edge(5, 6)),
        flags=9,
    )


def self_test_of(put: Callable[[bytes], str], number: int) -> SelfTest:
    """y is x, z is twice x; the fixed part of ``state`` stays zero, and unit 1 gets its sevens."""
    count = 4 * ROWS[number]
    kv = bytearray(state_period("f16")[: UNIT * UNITS])
    kv[UNIT : UNIT + 16] = struct.pack("<4I", 7, 7, 7, 7)
    state = digest(bytes(padded(128)) + bytes(kv[UNIT:]))
    cases = []
    for seed in (1, 2, 1):
        x = [float(value) for value in random.Random(10 * number + seed).choices(range(-99, 99), k=count)]
        inputs = struct.pack(f"<{2 * count}f", *x, *x)
        outputs = struct.pack(f"<{2 * count}f", *x, *(2 * value for value in x))
        cases.append(Case(inputs=put(inputs), outputs=digest(outputs), state=state, units=UNITS))
    return SelfTest(graph=number, cases=tuple(cases))


def without_extras(parts: TinyCore) -> TinyCore:
    """The same core without variables and function attributes."""
    modules = tuple(msgspec.structs.replace(module, globals=()) for module in parts.core.modules)
    return replace(parts.with_core(modules=modules), function_attributes=())


def in_slot(parts: TinyCore, slot: int) -> TinyCore:
    """The same core captured in another slot: every address is moved by the distance."""
    distance = (slot - parts.core.slot) * SLOT_STRIDE

    def moved(node: Node) -> Node:
        if isinstance(node, KernelNode):
            params = bytearray(node.params)
            for ref in node.refs:
                struct.pack_into("<Q", params, ref.at, struct.unpack_from("<Q", params, ref.at)[0] + distance)
            return replace(node, params=bytes(params))
        if isinstance(node, MemsetNode):
            return replace(node, address=node.address + distance)
        return (
            replace(node, to=node.to + distance, source=node.source + distance) if isinstance(node, CopyNode) else node
        )

    regions = tuple(
        msgspec.structs.replace(region, base=hex(int(region.base, 16) + distance)) for region in parts.core.regions
    )
    graphs = tuple(replace(graph, nodes=tuple(map(moved, graph.nodes))) for graph in parts.graphs)
    return replace(parts.with_core(slot=slot, regions=regions), graphs=graphs, name=f"{parts.name}-{slot}")
