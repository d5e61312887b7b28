"""A small, valid core without torch, and the means to write it altered but well signed.

Two buckets of one entry: each graph clears a scratch buffer, copies the input into it and on to the output, and runs
the probe kernel, which counts its blocks in a persistent buffer. It passes its self-tests on the host device.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from blake3 import blake3

from heliograph import _native
from heliograph.core.encoding import encode
from heliograph.core.envelope import Predicate, sign_core
from heliograph.core.format import CHUNK_BYTES, KERNEL_ABI, MIB, region_base, region_span
from heliograph.core.layout import cuts, padded
from heliograph.core.manifest import (
    Blob,
    Bucket,
    Buffer,
    Case,
    Core,
    Entry,
    Field,
    Function,
    Graph,
    Item,
    Module,
    Phase,
    Provenance,
    Region,
    Segment,
    SelfTest,
    Slice,
    Target,
    Tensor,
    Text,
    Weights,
)
from heliograph.core.rules.content import blob_references
from heliograph.core.sign import SigningKey, scratch_key
from heliograph.core.templates import (
    CopyNode,
    Edge,
    EmptyNode,
    GraphTemplate,
    KernelNode,
    MemsetNode,
    Ref,
    encode_catalogue,
)
from heliograph.core.write import DraftWriter, publish

NAME = "tiny-tp1-202611300900"
LEVEL = _native.host_levels()[0]
ROWS = (1, 2)
BLOCKS = 3  # of the probe kernel
UNIT = 256  # bytes of one unit of growing state


def digest(data: bytes) -> str:
    return blake3(data).hexdigest()


def probe_image() -> bytes:
    return (Path(_native.__file__).parent / "_kernels" / LEVEL / "probe.so").read_bytes()


@dataclass
class TinyCore:
    """The parts of a core, free to be altered. ``write`` signs whatever they are."""

    core: Core
    provenance: Provenance
    graphs: tuple[GraphTemplate, ...]
    blobs: dict[str, bytes]
    image: bytes  # of the weights
    key: SigningKey = field(default_factory=scratch_key)
    name: str = NAME
    function_attributes: Sequence[Sequence[tuple[int, int]]] = ()  # of each function; left out, none

    def with_core(self, **changes: Any) -> TinyCore:
        return replace(self, core=msgspec.structs.replace(self.core, **changes))

    def with_graph(self, number: int, change: Callable[[GraphTemplate], GraphTemplate]) -> TinyCore:
        graphs = tuple(change(graph) if at == number else graph for at, graph in enumerate(self.graphs))
        return replace(self, graphs=graphs)

    def graphs_bytes(self) -> bytes:
        chunks = [blake3(self.image[at : at + CHUNK_BYTES]).digest() for at in range(0, len(self.image), CHUNK_BYTES)]
        attributes = self.function_attributes or [()] * len(self.core.functions)
        return encode_catalogue(self.graphs, attributes, chunks)

    def files(
        self,
        core: bytes | None = None,
        provenance: bytes | None = None,
        graphs: bytes | None = None,
        predicate: Predicate | None = None,
        complete: bool = True,
    ) -> dict[str, bytes]:
        """Every file by its path in the folder, signed. Given bytes stand in for those of the parts; ``complete``
        fills ``graphs_file`` and ``blobs`` of core.json in, as a writer does."""
        graphs = self.graphs_bytes() if graphs is None else graphs
        record = self.core
        if complete:
            record = msgspec.structs.replace(
                record,
                graphs_file=Blob(digest=digest(graphs), size=len(graphs)),
                blobs=tuple(
                    Blob(digest=name, size=len(self.blobs.get(name, b""))) for name in sorted(blob_references(record))
                ),
            )
        core = encode(record) if core is None else core
        provenance = encode(self.provenance) if provenance is None else provenance
        predicate = predicate or Predicate(name=self.name, sequence=1796029200, signed_at="2026-11-30T09:00:00Z")
        files = {
            "core.json": core,
            "provenance.json": provenance,
            "graphs.safetensors": graphs,
            "core.sig": sign_core(core, provenance, self.key, predicate),
        }
        used = {blob.digest for blob in record.blobs}
        return files | {f"blobs/{name}": data for name, data in self.blobs.items() if name in used}

    def write(self, folder: Path, **files: Any) -> Path:
        """Writes the core without any check."""
        return write_files(folder / self.name, self.files(**files))

    def publish(self, cores: Path, name: str | None = NAME, key: SigningKey | None = None) -> Path:
        """Writes the core as a capture does."""
        with DraftWriter(cores) as writer:
            for data in self.blobs.values():
                writer.put_blob(data)
            slices, _ = writer.put_weights([self.image], self.core.weights.cap)
            weights = msgspec.structs.replace(self.core.weights, slices=slices)
            core = msgspec.structs.replace(self.core, weights=weights)
            graphs = self.graphs_bytes()
            draft = writer.finish(core, self.provenance, graphs, scratch_key())
            return publish(draft, core, self.provenance, graphs, key or self.key, name)


def write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def tiny_core(weight_bytes: int = 5 * MIB, cap: int = MIB, text: bool = False) -> TinyCore:
    """``weight_bytes``: of the weights image, 0 or at least 8 KiB; ``text``: with a tokenizer and a chat template."""
    blobs: dict[str, bytes] = {}

    def put(data: bytes) -> str:
        return blobs.setdefault(digest(data), data) and digest(data)

    image = random.Random(1).randbytes(weight_bytes)
    slices = tuple(Slice(offset=at, size=size, blob=put(image[at : at + size])) for at, size in cuts(len(image), cap))
    places = Places()
    weights = weights_of(places, image, slices, cap)
    places.add("constants", "constants/table", 64)
    places.add("persistent", "persistent/counter", 8, "u64", (1,))
    places.add("state", "state/history", 128, "i32", (4, 8))
    places.grow("state/kv", UNIT)
    for rows in ROWS:
        places.add("io", f"io/step/{rows}/in/x", 16 * rows, "f32", (rows, 4))
        places.add("io", f"io/step/{rows}/out/y", 16 * rows, "f32", (rows, 4))
        places.share("scratch", f"scratch/copy/0/{rows}", 16 * rows, "f32", (rows, 4))
    table, zero = put(bytes(range(64))), put(bytes(8))
    initial = {
        "constants": (Slice(offset=0, size=64, blob=table),),
        "persistent": (Slice(offset=0, size=8, blob=zero),),
    }
    core = Core(
        format=0,
        features=(),
        model="tiny",
        target=Target(device="host", arch=LEVEL, abi=KERNEL_ABI, ranks=1, processors=0, shared_optin=0, driver=0),
        limits=(),
        numerics="row-invariant",
        slot=0,
        regions=places.regions(initial),
        buffers=tuple(places.buffers),
        modules=(module_of(put(probe_image())),),
        functions=(Function(name="count", module=0, param_bytes=8, pointers=(0,), constants=()),),
        graphs=tuple(Graph(name=f"step/{rows}", flags=0, nodes=5, edges=4) for rows in ROWS),
        entries=(Entry(name="step", buckets=tuple(bucket_of(places, number) for number in range(len(ROWS)))),),
        graphs_file=Blob(digest="0" * 64, size=0),
        weights=weights,
        choices=(),
        self_tests=tuple(self_test_of(put, number) for number in range(len(ROWS))),
        text=text_of(put) if text else None,
        blobs=(),
    )
    graphs = tuple(graph_of(places, rows) for rows in ROWS)
    return TinyCore(core, provenance_of(), graphs, blobs, image)


class Places:
    """Buffers under construction."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.ends: dict[str, int] = {}
        self.unit = 0

    def add(self, role: str, name: str, size: int, dtype: str = "u8", shape: tuple[int, ...] | None = None) -> None:
        offset = self.ends.get(role, 0)
        self.ends[role] = offset + padded(size)
        self.put(role, name, offset, size, dtype, (size,) if shape is None else shape)

    def share(self, role: str, name: str, size: int, dtype: str, shape: tuple[int, ...]) -> None:
        """A buffer at the region's beginning, like all others of it."""
        self.ends[role] = max(self.ends.get(role, 0), padded(size))
        self.put(role, name, 0, size, dtype, shape)

    def grow(self, name: str, unit: int) -> None:
        self.unit = unit
        self.put("state", name, self.ends["state"], unit, "f16", (unit // 2,), grows=True)

    def put(
        self, role: str, name: str, offset: int, size: int, dtype: str, shape: tuple[int, ...], grows: bool = False
    ) -> None:
        self.buffers.append(
            Buffer(name=name, role=role, offset=offset, size=size, dtype=dtype, shape=shape, grows=grows)
        )

    def index(self, name: str) -> int:
        return [buffer.name for buffer in self.buffers].index(name)

    def address(self, name: str) -> int:
        buffer = self.buffers[self.index(name)]
        return region_base(0, buffer.role) + buffer.offset

    def regions(self, initial: Mapping[str, tuple[Slice, ...]]) -> tuple[Region, ...]:
        regions = [
            Region(
                role=role,
                base=hex(region_base(0, role)),
                span=region_span(role),
                size=size,
                grow=self.unit if role == "state" else 0,
                grow_at=size if role == "state" else 0,
                initial=initial.get(role, ()),
            )
            for role, size in self.ends.items()
        ]
        return tuple(sorted(regions, key=lambda region: int(region.base, 16)))


def weights_of(places: Places, image: bytes, slices: tuple[Slice, ...], cap: int) -> Weights:
    """A plain tensor, a packed one, one that fills the rest, and a second name for the first (tied weights)."""
    if not image:
        return Weights(cap=cap, size=0, slices=(), tensors=())
    plain, packed = 4 * 16 * 8, 4 * 2 * 34
    rest_at = padded(plain) + padded(packed)
    rest = len(image) - rest_at
    rows = (
        ("head", 0, plain, "f32", (16, 8), "plain"),
        ("layer/0", padded(plain), packed, "u8", (4, 64), "q8_0"),
        ("rest", rest_at, rest, "u8", (rest,), "plain"),
        ("tail", 0, plain, "f32", (16, 8), "plain"),
    )
    tensors = []
    for name, offset, size, dtype, shape, layout in rows:
        stored = digest(image[offset : offset + size])
        tensors.append(
            Tensor(
                name=name,
                offset=offset,
                size=size,
                dtype=dtype,
                shape=shape,
                layout=layout,
                source=stored,
                stored=stored,
            )
        )
        if name != "tail":
            places.put("weights", f"weights/{name}", offset, size, "u8", (size,))
    places.ends["weights"] = len(image)
    return Weights(cap=cap, size=len(image), slices=slices, tensors=tuple(tensors))


def module_of(blob: str) -> Module:
    return Module(
        blob=blob, family="probe", origin=f"heliograph host kernels {LEVEL}", size=len(probe_image()), globals=()
    )


def bucket_of(places: Places, number: int) -> Bucket:
    rows = ROWS[number]
    return Bucket(
        shape=(("rows", rows),),
        segments=(Segment(kind="graph", graph=number),),
        inputs=(Field(name="x", buffer=places.index(f"io/step/{rows}/in/x")),),
        outputs=(Field(name="y", buffer=places.index(f"io/step/{rows}/out/y")),),
    )


def graph_of(places: Places, rows: int) -> GraphTemplate:
    names = {"x": f"io/step/{rows}/in/x", "s": f"scratch/copy/0/{rows}", "y": f"io/step/{rows}/out/y"}
    at = {short: (places.address(name), places.index(name), 0) for short, name in names.items()}
    counter = "persistent/counter"
    return GraphTemplate(
        nodes=(
            MemsetNode(f"tiny/clear, tiny.py:{rows}", *at["s"], width=16 * rows),
            CopyNode("tiny/copy", *at["s"], *at["x"], size=16 * rows),
            CopyNode("tiny/copy", *at["y"], *at["s"], size=16 * rows),
            KernelNode(
                origin="tiny/count",
                function=0,
                grid=(BLOCKS, 1, 1),
                params=struct.pack("<Q", places.address(counter)),
                refs=(Ref(at=0, buffer=places.index(counter), offset=0),),
            ),
            EmptyNode("tiny/join"),
        ),
        edges=(Edge(0, 1), Edge(1, 2), Edge(2, 4), Edge(3, 4)),
    )


def self_test_of(put: Callable[[bytes], str], number: int) -> SelfTest:
    """Outputs equal inputs; the fixed part of ``state`` stays zero, and unit 0 is padding."""
    cases = []
    for seed in (1, 2, 1):
        data = random.Random(10 * number + seed).randbytes(16 * ROWS[number])
        cases.append(Case(inputs=put(data), outputs=digest(data), state=digest(bytes(padded(128))), units=1))
    return SelfTest(graph=number, cases=tuple(cases))


def text_of(put: Callable[[bytes], str]) -> Text:
    return Text(
        tokenizer=put(b'{"version":"1.0"}'),
        chat_template=put(b"{{ messages }}"),
        bos=-1,
        eos=(0,),
        vocabulary=32,
        context=64,
        block_tokens=16,
        concurrency=2,
        bos_text="",
        eos_text="</s>",
    )


def provenance_of() -> Provenance:
    return Provenance(
        format=0,
        created="2026-11-30T09:00:00Z",
        command=("heliograph", "capture", "blake3:" + "1" * 64),
        commit="",
        uncommitted="",
        environment=(Item(name="PYTHONHASHSEED", value="0"),),
        compiler=(Item(name="c++", value="GNU 13.3.0"),),
        versions=(Item(name="heliograph", value="0.1.0"),),
        libraries=(),
        sources=(),
        device=(Item(name="arch", value=LEVEL),),
        source_files=(),
        tuning_cache="",
        seed=0,
        retain="template",
        costs=(),
        phases=(Phase(name="record", nanoseconds=1),),
        tuning_log=(),
        findings=(),
    )
