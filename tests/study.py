"""A small core made without torch, with graphs that do what a test asks.

The model: ``out = x * sum(weights) + table + cache[ids]``, ``total += out[0]``, ``cache[ids] = out / 2`` for rows of
256 numbers; ids −1 mark padding rows. ``plant`` adds nodes with a fault to every graph.
"""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from blake3 import blake3

from heliograph import _native
from heliograph.core import manifest
from heliograph.core.format import KERNEL_ABI, MIB, UNKNOWN_DIGEST, region_base, region_span
from heliograph.core.layout import Placer
from heliograph.core.report import Padding, Report, Request
from heliograph.core.sign import SigningKey, scratch_key
from heliograph.core.templates import CopyNode, Edge, GraphTemplate, KernelNode, MemsetNode, Node, Ref, encode_catalogue
from heliograph.core.write import Draft, DraftWriter, publish
from heliograph.runtime.patterns import state_period

Script = Callable[..., dict[str, object]]  # fixture: runs a script of tests/fresh_process, gives its last line
COLS = 256
UNITS = 6
UNIT_BYTES = COLS * 4
KERNELS = Path(__file__).parents[1] / "native" / "host" / "kernels"
FLAGS = [
    "-std=c++20", "-O2", "-fPIC", "-ffreestanding", "-fno-exceptions", "-fno-rtti", "-fno-stack-protector",
    "-fvisibility=hidden", "-ffp-contract=off", "-fno-asynchronous-unwind-tables", "-shared", "-nostdlib",
    "-Wl,-z,defs", "-Wl,-z,noexecstack", "-Wl,--build-id=none", "-Wl,-s",
]  # fmt: skip

# name: (struct format of the parameters, offsets of the pointers)
FUNCTIONS = {
    "scale": ("<QQQII", (0, 8, 16)),
    "shift": ("<QQQI4x", (0, 8, 16)),
    "fetch": ("<QQQQI4x", (0, 8, 16, 24)),
    "store": ("<QQQI4x", (0, 8, 16)),
    "total": ("<QQI4x", (0, 8)),
    "peek": ("<QQ", (0, 8)),
    "bump": ("<QQ", (0, 8)),
    "poke": ("<Q", (0,)),
    "trap": ("<Q", (0,)),
    "hang": ("<Q", (0,)),
    "leak": ("<QQI4x", (0, 8)),
    "spoil": ("<Q", (0,)),
}


@cache
def image(level: str = "generic") -> bytes:
    """The kernel module, compiled once."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "study.so"
        source = Path(__file__).with_suffix(".cpp")
        command = ["g++", *FLAGS, f'-DHG_LEVEL="{level}"', "-I..", f"-I{KERNELS}", "-o", str(out), str(source)]
        subprocess.run(command, check=True, cwd=KERNELS)
        return out.read_bytes()


@dataclass
class Memory:
    """Buffers by name, placed region by region."""

    slot: int
    placers: dict[str, Placer] = field(default_factory=dict)
    buffers: list[manifest.Buffer] = field(default_factory=list)

    def add(self, role: str, name: str, dtype: str, shape: Sequence[int], grows: bool = False) -> int:
        size = {"f32": 4, "i32": 4, "u32": 4}[dtype]
        for extent in shape:
            size *= extent
        placer = self.placers.setdefault(role, Placer())
        offset = placer.end if grows else placer.place(size)
        self.buffers.append(
            manifest.Buffer(
                name=name, role=role, offset=offset, size=size, dtype=dtype, shape=tuple(shape), grows=grows
            )
        )
        return len(self.buffers) - 1

    def address(self, buffer: int) -> int:
        place = self.buffers[buffer]
        return region_base(self.slot, place.role) + place.offset


@dataclass
class Study:
    """What to build. ``plant`` names functions from "peek" on; ``rows`` are the buckets of the entry ``step``."""

    slot: int = 0
    rows: tuple[int, ...] = (1, 2, 4)
    plant: tuple[str, ...] = ()
    cap: int = 4 * MIB
    seed: int = 1
    level: str = "generic"  # of the module
    arch: str = "generic"  # of the target
    weights: bytes = b""
    counter_in: str = "scratch"  # where "bump" counts
    depth: int = 5 * 1024  # rows of the weights, 1 KiB each: two chunks

    def __post_init__(self) -> None:
        if not self.weights:
            size, skip, period = COLS * self.depth * 4, self.seed << 12, state_period("f32")
            self.weights = (period * (1 + (size + skip) // len(period)))[skip : skip + size]


class Builder:
    """Builds a draft of a study."""

    def __init__(self, study: Study, writer: DraftWriter) -> None:
        self.study, self.writer = study, writer
        self.memory = Memory(study.slot)
        self.functions: list[str] = []
        self.weights = self.memory.add("weights", "weights/w", "f32", (study.depth, COLS))
        self.table = self.memory.add("constants", "constants/table", "f32", (COLS,))
        self.counter = self.memory.add("persistent", "persistent/counter", "u32", (64,))
        self.rows = max(study.rows)
        self.scaled = self.memory.add("scratch", "scratch/scaled", "f32", (self.rows, COLS))
        self.shifted = self.memory.add("scratch", "scratch/shifted", "f32", (self.rows, COLS))
        self.hole = self.memory.add("scratch", "scratch/hole", "u32", (4096,))
        self.total = self.memory.add("state", "state/total", "f32", (COLS,))
        self.cache = self.memory.add("state", "state/cache", "f32", (COLS,), grows=True)
        self.ios = {rows: self.io(rows) for rows in study.rows}

    def io(self, rows: int) -> dict[str, int]:
        name = f"io/step/{rows}"
        return {
            "x": self.memory.add("io", f"{name}/in/x", "f32", (rows, COLS)),
            "ids": self.memory.add("io", f"{name}/in/ids", "i32", (rows,)),
            "out": self.memory.add("io", f"{name}/out/out", "f32", (rows, COLS)),
            "sum": self.memory.add("io", f"{name}/out/sum", "f32", (COLS,)),
        }

    def kernel(self, name: str, blocks: int, *values: int, offsets: Sequence[int] = ()) -> KernelNode:
        """``values``: buffers where the function takes pointers, numbers elsewhere; ``offsets`` are added to them."""
        form, pointers = FUNCTIONS[name]
        if name not in self.functions:
            self.functions.append(name)
        shifts = list(offsets) + [0] * (len(pointers) - len(offsets))
        addresses = [self.memory.address(values[i]) + shifts[i] for i in range(len(pointers))]
        plain = [*addresses, *values[len(pointers) :]]
        refs = tuple(Ref(at, values[i], shifts[i]) for i, at in enumerate(pointers))
        return KernelNode(
            origin=f"study.{name}", function=self.functions.index(name), grid=(blocks, 1, 1),
            params=struct.pack(form, *plain), refs=refs,
        )  # fmt: skip

    def graph(self, rows: int) -> GraphTemplate:
        io = self.ios[rows]
        nodes: list[Node] = [
            self.kernel("scale", rows, io["x"], self.weights, self.scaled, COLS, self.study.depth),
            self.kernel("shift", rows, self.scaled, self.table, self.shifted, COLS),
            self.kernel("fetch", rows, self.shifted, self.cache, io["ids"], io["out"], COLS),
            *(self.planted(name, rows) for name in self.study.plant),
            self.kernel("total", 1, io["out"], self.total, COLS),
            self.kernel("store", rows, io["out"], io["ids"], self.cache, COLS),
            CopyNode(
                "study.copy", self.memory.address(io["sum"]), io["sum"], 0, self.memory.address(self.total),
                self.total, 0, COLS * 4,
            ),
            MemsetNode("study.clear", self.memory.address(self.scaled), self.scaled, 0, width=64),
        ]  # fmt: skip
        return GraphTemplate(tuple(nodes), tuple(Edge(i, i + 1) for i in range(len(nodes) - 1)))

    def planted(self, name: str, rows: int) -> Node:
        io = self.ios[rows]
        counter = self.hole if self.study.counter_in == "scratch" else self.counter
        match name:
            case "peek":
                return self.kernel(name, 1, self.hole, io["out"], offsets=(9000,))
            case "bump":
                return self.kernel(name, 1, counter, io["out"], offsets=(512 if counter == self.hole else 0,))
            case "poke":
                return self.kernel(name, 1, self.table)
            case "trap" | "hang":
                return self.kernel(name, 1, self.hole, offsets=(4096,))
            case "leak":
                return self.kernel(name, 1, io["x"], io["out"], (rows - 1) * COLS)
            case _:
                return self.kernel(name, 1, io["out"])

    def regions(self) -> tuple[manifest.Region, ...]:
        table = struct.pack(f"<{COLS}f", *(1 / (i + 1) for i in range(COLS)))
        initial = {
            "constants": (manifest.Slice(offset=0, size=len(table), blob=self.writer.put_blob(table)),),
            "persistent": (manifest.Slice(offset=0, size=8, blob=self.writer.put_blob(b"\5\0\0\0\7\0\0\0")),),
        }
        found = []
        for role, placer in self.memory.placers.items():
            grows = role == "state"
            found.append(
                manifest.Region(
                    role=role,
                    base=hex(region_base(self.study.slot, role)),
                    span=region_span(role),
                    size=len(self.study.weights) if role == "weights" else placer.end,
                    grow=UNIT_BYTES if grows else 0,
                    grow_at=placer.end if grows else 0,
                    initial=initial.get(role, ()),
                )
            )
        return tuple(sorted(found, key=lambda region: int(region.base, 16)))

    def inputs(self, rows: int, seed: int) -> bytes:
        """The last row of every bucket with more than one row is padding."""
        values = random.Random(f"{rows} {seed}")
        x = struct.pack(f"<{rows * COLS}f", *(values.uniform(-1, 1) for _ in range(rows * COLS)))
        ids = [1 + (seed + row) % (UNITS - 1) for row in range(rows)]
        if rows > 1:
            ids[-1] = -1
        return x + struct.pack(f"<{rows}i", *ids)

    def core(self, graphs: Sequence[GraphTemplate], slices: tuple[manifest.Slice, ...]) -> manifest.Core:
        study, digest = self.study, self.writer.put_blob(image(self.study.level))
        inputs = {rows: [self.writer.put_blob(self.inputs(rows, seed)) for seed in (0, 1)] for rows in study.rows}
        return manifest.Core(
            format=0, features=(), model="study", numerics="row-invariant", slot=study.slot,
            target=manifest.Target(
                device="host", arch=study.arch, abi=KERNEL_ABI, ranks=1, processors=0, shared_optin=0, driver=0
            ),
            limits=(), regions=self.regions(), buffers=tuple(self.memory.buffers),
            modules=(
                manifest.Module(blob=digest, family="study", origin="tests", size=len(image(study.level)), globals=()),
            ),
            functions=tuple(
                manifest.Function(
                    name=name, module=0, param_bytes=struct.calcsize(FUNCTIONS[name][0]),
                    pointers=FUNCTIONS[name][1], constants=(),
                )
                for name in self.functions
            ),
            graphs=tuple(
                manifest.Graph(name=f"step/{rows}", flags=0, nodes=len(graph.nodes), edges=len(graph.edges))
                for rows, graph in zip(study.rows, graphs, strict=True)
            ),
            entries=(
                manifest.Entry(
                    name="step",
                    buckets=tuple(
                        manifest.Bucket(
                            shape=(("rows", rows),), segments=(manifest.Segment(kind="graph", graph=number),),
                            inputs=tuple(manifest.Field(name=n, buffer=self.ios[rows][n]) for n in ("x", "ids")),
                            outputs=tuple(manifest.Field(name=n, buffer=self.ios[rows][n]) for n in ("out", "sum")),
                        )
                        for number, rows in enumerate(study.rows)
                    ),
                ),
            ),
            graphs_file=manifest.Blob(digest=UNKNOWN_DIGEST, size=0),
            weights=manifest.Weights(
                cap=study.cap, size=len(study.weights), slices=slices,
                tensors=(
                    manifest.Tensor(
                        name="w", offset=0, size=len(study.weights), dtype="f32", layout="plain",
                        shape=(study.depth, COLS),
                        source=blake3(study.weights).hexdigest(), stored=blake3(study.weights).hexdigest(),
                    ),
                ),
            ),
            choices=(),
            self_tests=tuple(
                manifest.SelfTest(
                    graph=number,
                    cases=tuple(
                        manifest.Case(
                            inputs=inputs[rows][case], outputs=UNKNOWN_DIGEST, state=UNKNOWN_DIGEST, units=UNITS
                        )
                        for case in (0, 1, 0)
                    ),
                )
                for number, rows in enumerate(study.rows)
            ),
            text=None, blobs=(),
        )  # fmt: skip

    def padding(self) -> tuple[Padding, ...]:
        found = []
        for number, rows in enumerate(self.study.rows):
            if rows > 1:
                for case in range(3):
                    for name, output in (("x", False), ("out", True)):
                        found.append(
                            Padding(
                                graph=number,
                                case=case,
                                field=name,
                                output=output,
                                poison=not output,
                                real_bytes=(rows - 1) * COLS * 4,
                            )
                        )
        return tuple(found)


@dataclass
class Drafted:
    draft: Draft
    key: SigningKey
    core: manifest.Core
    graphs: bytes
    padding: tuple[Padding, ...]


PROVENANCE = manifest.Provenance(
    format=0, created="2026-11-30T09:00:00Z", command=(), commit="", uncommitted="", environment=(), compiler=(),
    versions=(), libraries=(), sources=(), device=(), source_files=(), tuning_cache="", seed=0, retain="template",
    costs=(), phases=(), tuning_log=(), findings=(),
)  # fmt: skip


def draft(study: Study, writer: DraftWriter) -> Drafted:
    """Writes the draft of a study, its self-test results unknown."""
    builder = Builder(study, writer)
    graphs = [builder.graph(rows) for rows in study.rows]
    slices, chunks = writer.put_weights([study.weights], study.cap)
    core = builder.core(graphs, slices)
    data = encode_catalogue(graphs, [() for _ in builder.functions], chunks)
    key = scratch_key()
    return Drafted(writer.finish(core, PROVENANCE, data, key), key, core, data, builder.padding())


def ask(
    made: Drafted, mode: str = "explore", limit: int = 60, memory_limit: int = 0
) -> subprocess.CompletedProcess[bytes]:
    """Runs the checker on a draft, as capture does."""
    request = Request(
        public_key=made.key.public_bytes.hex(),
        mode=mode,
        workers=2,
        limit_seconds=limit,
        memory_limit=memory_limit,
        padding=made.padding,
    )
    command = [sys.executable, "-m", "heliograph.runtime.check", str(made.draft.path), str(os.getpid())]
    return subprocess.run(command, input=msgspec.json.encode(request), capture_output=True, check=False)


def check(made: Drafted, mode: str = "explore", limit: int = 60, memory_limit: int = 0) -> Report:
    done = ask(made, mode, limit, memory_limit)
    assert done.returncode == 0, done.stderr.decode()
    return msgspec.json.decode(done.stdout, type=Report)


def with_results(core: manifest.Core, report: Report) -> manifest.Core:
    """The core with the self-test results that the checker found."""
    tests = []
    for test, result in zip(core.self_tests, report.self_tests, strict=True):
        cases = tuple(
            msgspec.structs.replace(case, outputs=outputs, state=state)
            for case, outputs, state in zip(test.cases, result.outputs, result.states, strict=True)
        )
        tests.append(msgspec.structs.replace(test, cases=cases))
    return msgspec.structs.replace(core, self_tests=tuple(tests))


def make(folder: Path, study: Study, key: SigningKey, name: str = "study") -> Path:
    """Draft, checker, publication: the whole way of a capture."""
    with DraftWriter(folder) as writer:
        made = draft(study, writer)
        core = with_results(made.core, check(made))
        return publish(made.draft, core, PROVENANCE, made.graphs, key, name=name)


def host_level() -> str:
    return _native.host_levels()[0]


def loads(text: str) -> dict[str, object]:
    """The last line of a script's output as JSON."""
    result: dict[str, object] = json.loads(text.strip().splitlines()[-1])
    return result
