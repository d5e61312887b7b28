"""A made-up catalogue of many small kernel images with one function each, and what loading it takes. No torch.

    python catalogue.py build COUNT FOLDER     writes the core for this GPU, prints its folder and public key
    python catalogue.py load CORE KEY BEGIN    loads it, runs it, prints times; BEGIN: time.time() before the start

All images are one, compiled once: in each the kernel's name and the number that it adds are replaced. With ``outside``
behind FOLDER the kernels also write where nothing is.
"""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import gpu.no_torch  # noqa: F401
from heliograph.core.manifest import (
    Blob,
    Bucket,
    Case,
    Core,
    Entry,
    Field,
    Function,
    Graph,
    Module,
    Segment,
    SelfTest,
    Target,
    Weights,
)
from heliograph.core.policy import Policy
from heliograph.core.templates import CopyNode, Edge, GraphTemplate, KernelNode, Ref
from heliograph.core.verify import verify
from heliograph.device.cuda import open_cuda
from heliograph.runtime.load import load
from tiny_core import Places, TinyCore, digest, provenance_of

GRAPHS, LANES, SIZE = 8, 32, 128  # SIZE: bytes of an input or output
NAME, ADDED = "kernel_00000", 0x12345678
WORK = f"y[threadIdx.x] = y[threadIdx.x] * 3u + {ADDED:#x}u;"
OUTSIDE = "y[threadIdx.x + (1ull << 42)] = 1u;"  # 16 TiB behind: beyond the slot, and before any address of the host


def template_image(arch: str, body: str) -> bytes:
    """The cubin that all others are made of."""
    with TemporaryDirectory() as folder:
        Path(folder, "kernel.cu").write_text(f'extern "C" __global__ void {NAME}(unsigned *y) {{ {body} }}')
        command = ["nvcc", "-cubin", f"-arch={arch}", "-o", "kernel.cubin", "kernel.cu"]
        subprocess.run(command, check=True, cwd=folder, capture_output=True)
        return Path(folder, "kernel.cubin").read_bytes()


def name_of(number: int) -> str:
    return f"kernel_{number:05}"


def added(number: int) -> int:
    return (ADDED + 7919 * number) & 0x7FFFFFFF


def images(count: int, arch: str, body: str) -> Iterator[bytes]:
    template, before = template_image(arch, body), struct.pack("<I", ADDED)
    if template.count(before) != 1:
        raise RuntimeError(f"{template.count(before)} places of the added number in the compiled kernel, not one")
    for number in range(count):
        image = template.replace(before, struct.pack("<I", added(number)))
        yield image.replace(NAME.encode(), name_of(number).encode())


def functions_of(graph: int, count: int) -> range:
    """The functions that a graph launches, in order."""
    return range(graph, count, GRAPHS)


def expected(graph: int, count: int, data: bytes) -> bytes:
    lanes = list(struct.unpack(f"<{LANES}I", data))
    for number in functions_of(graph, count):
        lanes = [(lane * 3 + added(number)) & 0xFFFFFFFF for lane in lanes]
    return struct.pack(f"<{LANES}I", *lanes)


def catalogue(count: int, target: Target, body: str = WORK) -> TinyCore:
    blobs: dict[str, bytes] = {}

    def put(data: bytes) -> str:
        name = digest(data)
        blobs[name] = data
        return name

    places = Places()
    for graph in range(GRAPHS):
        for side in ("in/x", "out/y"):
            places.add("io", f"io/step/{graph + 1}/{side}", SIZE, "i32", (LANES,))
    modules = [
        Module(blob=(blob := put(image)), family=f"cubin-{blob[:12]}", origin="made", size=len(image), globals=())
        for image in images(count, target.arch, body)
    ]
    core = Core(
        format=0,
        features=(),
        model="catalogue",
        target=target,
        limits=(),
        numerics="row-invariant",
        slot=0,
        regions=places.regions({}),
        buffers=tuple(places.buffers),
        modules=tuple(modules),
        functions=tuple(
            Function(name=name_of(number), module=number, param_bytes=8, pointers=(), constants=())
            for number in range(count)
        ),
        graphs=tuple(
            Graph(name=f"step/{graph + 1}", flags=0, nodes=1 + len(functions_of(graph, count)),
                  edges=len(functions_of(graph, count)))
            for graph in range(GRAPHS)
        ),
        entries=(Entry(name="step", buckets=tuple(bucket(places, graph) for graph in range(GRAPHS))),),
        graphs_file=Blob(digest="0" * 64, size=0),
        weights=Weights(cap=1 << 20, size=0, slices=(), tensors=()),
        choices=(),
        self_tests=tuple(
            SelfTest(
                graph=graph,
                cases=tuple(
                    Case(inputs=put(data), outputs=digest(expected(graph, count, data)), state=digest(b""), units=0)
                    for data in (random.Random(100 * graph + seed).randbytes(SIZE) for seed in (1, 2, 1))
                ),
            )
            for graph in range(GRAPHS)
        ),
        text=None,
        blobs=(),
    )  # fmt: skip
    graphs = tuple(template(places, graph, count) for graph in range(GRAPHS))
    return TinyCore(core, provenance_of(), graphs, blobs, b"", name=f"catalogue-{count}")


def bucket(places: Places, graph: int) -> Bucket:
    return Bucket(
        shape=(("rows", graph + 1),),
        segments=(Segment(kind="graph", graph=graph),),
        inputs=(Field(name="x", buffer=places.index(f"io/step/{graph + 1}/in/x")),),
        outputs=(Field(name="y", buffer=places.index(f"io/step/{graph + 1}/out/y")),),
    )


def template(places: Places, graph: int, count: int) -> GraphTemplate:
    x, y = (f"io/step/{graph + 1}/{side}" for side in ("in/x", "out/y"))
    at = places.address(y)
    copied = CopyNode("made/copy", at, places.index(y), 0, places.address(x), places.index(x), 0, size=SIZE)
    launches = [
        KernelNode(
            origin="made/launch",
            function=number,
            grid=(1, 1, 1),
            block=(LANES, 1, 1),
            params=struct.pack("<Q", at),
            refs=(Ref(at=0, buffer=places.index(y), offset=0),),
        )
        for number in functions_of(graph, count)
    ]
    return GraphTemplate((copied, *launches), tuple(Edge(node, node + 1) for node in range(len(launches))))


def build(count: int, folder: Path, body: str) -> None:
    device = open_cuda()
    target = Target(
        device="cuda", arch=device.arch, abi=0, ranks=1, processors=device.processors,
        shared_optin=device.shared_optin, driver=device.driver_version,
    )  # fmt: skip
    device.close()
    parts = catalogue(count, target, body)
    print(json.dumps({"core": str(parts.write(folder)), "key": parts.key.public_bytes.hex(), "count": count}))


def measure(core: Path, key: str, begin: float) -> None:
    """Times in milliseconds; ``start``: of the process until here."""
    times = {"start": 1000 * (time.time() - begin)}
    count = int(core.name.rpartition("-")[2])
    data = random.Random(0).randbytes(SIZE)

    def timed(name: str, since: float) -> float:
        now = time.perf_counter()
        times[name] = 1000 * (now - since)
        return now

    clock = time.perf_counter()
    with verify(core, Policy.only(bytes.fromhex(key))) as verified:
        clock = timed("verify", clock)
        program = load(verified, ready=[("step", {"rows": 1})])
    clock = timed("load", clock)
    with program:
        program.write("step", {"rows": 1}, "x", data)
        program.run("step", rows=1)
        first = program.read("step", {"rows": 1}, "y")
        clock = timed("run", clock)
        times["first result"] = 1000 * (time.time() - begin)
        right = [first == expected(0, count, data)]
        clock = time.perf_counter()
        for graph in range(1, GRAPHS):
            shape = {"rows": graph + 1}
            program.write("step", shape, "x", data)
            program.run("step", **shape)
            right.append(program.read("step", shape, "y") == expected(graph, count, data))
        timed("other graphs", clock)
        phases = {name: spent / 1e6 for name, spent in program.phases.items()}
        loaded = program._loaded.device.counters()["modules_loaded"]
    print(json.dumps({"functions": count, "right": right, "modules": loaded, "times": times, "phases": phases}))


if __name__ == "__main__":
    if sys.argv[1] == "build":
        build(int(sys.argv[2]), Path(sys.argv[3]), WORK + OUTSIDE if sys.argv[4:] == ["outside"] else WORK)
    else:
        measure(Path(sys.argv[2]), sys.argv[3], float(sys.argv[4]))
