"""The table of what a CUDA graph keeps: complete, documented, and true row by row."""

from __future__ import annotations

import importlib.util
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from fake_cuda.build import cuda_headers
from fake_cuda.control import FakeCuda
from fake_cuda.foreign import Foreign
from heliograph._native import SealedImage, Template, cuda_fidelity
from heliograph.core.format import CUDA_EDGES, CUDA_NODE_ATTRIBUTES, FLAGS
from heliograph.errors import CaptureError, FlagsError
from rigs import Rig

ROOT = Path(__file__).parents[2]
HEADER = (cuda_headers() / "cuda.h").read_text(encoding="utf-8", errors="replace")
IMAGE = b"fake-image sm_90\nnothing\n"
# How the header names each aspect, and the value that is there but stands for nothing.
PATTERNS = {
    "node": r"^\s+CU_GRAPH_NODE_TYPE_(\w+)\s*=\s*(\d+)",
    "attribute": r"^\s+,? ?CU_LAUNCH_ATTRIBUTE_(\w+)\s*=\s*(\d+)",
    "edge": r"^\s+CU_GRAPH_DEPENDENCY_TYPE_(\w+)\s*=\s*(\d+)",
    "port": r"^#define CU_GRAPH_KERNEL_NODE_PORT_(\w+)\s+(\d+)",
    "flag": r"^\s+,? ?CUDA_GRAPH_INSTANTIATE_FLAG_(\w+)\s*=\s*(\d+)",
}
ROWS = cuda_fidelity()
NO_NODE_HAS = (0, 3, 6, 7, 12)  # attributes of streams and launches, which the driver refuses on a node


def rows(aspect: str, *, kept: bool | None = None) -> list[int]:
    return [number for kind, number, _, is_kept, _, _ in ROWS if kind == aspect and kept in (None, is_kept)]


def name(aspect: str, number: int) -> str:
    return next(row[2] for row in ROWS if row[:2] == (aspect, number))


@pytest.fixture
def foreign(fake_cuda: FakeCuda, cuda: Rig) -> Iterator[Foreign]:
    made = Foreign(fake_cuda)
    yield made
    made.close()


@pytest.fixture
def graph(foreign: Foreign) -> int:
    """One plain kernel node."""
    made = foreign.graph()
    foreign.launch(made, kernel=foreign.kernel(foreign.library(IMAGE), "nothing"))
    return made


# ---- complete and documented ----


@pytest.mark.parametrize("aspect", PATTERNS)
def test_table_has_exactly_what_the_header_has(aspect: str) -> None:
    known = {(found, int(number)) for found, number in re.findall(PATTERNS[aspect], HEADER, re.MULTILINE)}
    assert len(known) >= 2
    assert {(row[2], row[1]) for row in ROWS if row[0] == aspect} == known


def test_each_row_is_there_once_and_says_how_or_why() -> None:
    assert len({row[:2] for row in ROWS}) == len(ROWS)
    assert all(len(row[5]) > 5 for row in ROWS)


def test_page_is_the_table() -> None:
    script = load_script()
    assert script.PAGE.read_text() == script.page(), "run scripts/cuda_nodes.py --write"


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cuda_nodes_script", ROOT / "scripts" / "cuda_nodes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_format_keeps_what_the_table_keeps() -> None:
    assert {row[1]: row[4] for row in ROWS if row[0] == "attribute" and row[3]} == dict(CUDA_NODE_ATTRIBUTES)
    assert {kind for _, kind in CUDA_EDGES} == set(rows("edge", kept=True))
    assert {port for port, _ in CUDA_EDGES} == set(rows("port", kept=True))
    assert {flag for flags in FLAGS for flag in (1, 2, 4, 8) if flags & flag} == set(rows("flag", kept=True))


# ---- node types ----


def graph_with(foreign: Foreign, rig: Rig, kind: int) -> tuple[int, int]:
    """A graph with a node of a kept type, and the number of nodes that it has flattened."""
    made, base = foreign.graph(), rig.pool.address
    if kind == 0:
        foreign.launch(made, kernel=foreign.kernel(foreign.library(IMAGE), "nothing"))
    elif kind == 1:
        foreign.copy(made, base + 64, base, 64)
    elif kind == 2:
        foreign.memset(made, base, 1, element=4, width=2, height=1, pitch=0)
    elif kind == 4:
        inner = foreign.graph()
        foreign.node(inner, 5)
        foreign.child(made, inner)
    elif kind == 5:
        foreign.node(made, 5)
    else:
        foreign.record(made, 1)
        foreign.wait(made, 1)
        return made, 2
    return made, 1


@pytest.mark.parametrize("kind", rows("node", kept=True))
def test_kept_node_type_is_read(cuda: Rig, foreign: Foreign, kind: int) -> None:
    made, count = graph_with(foreign, cuda, kind)
    nodes = cuda.device.borrow_template(made).nodes()
    assert [node.kind for node in nodes] == [kind if kind in (0, 1, 2) else 5] * count


@pytest.mark.parametrize("kind", [*rows("node", kept=False), 14, 99])
def test_refused_node_type_is_refused_by_name(cuda: Rig, foreign: Foreign, graph: int, kind: int) -> None:
    assert cuda.device.borrow_template(graph).node_count == 1
    foreign.node(graph, kind)
    with pytest.raises(CaptureError) as refused:
        cuda.device.borrow_template(graph)
    known = kind in rows("node")
    type_name = name("node", kind) if known else "without a name"
    assert refused.value.found == f"node 1: a node of type {type_name} ({kind})"


# ---- attributes ----


def value(number: int) -> bytes:
    """One that no plain node has, and that the driver accepts."""
    if number == 1:
        return struct.pack("<QQfii", 0x1601_0000_0000, 4096, 1.0, 1, 0)
    return struct.pack("<iii", 1, 1, 1)[: {4: 12, 11: 12, 9: 2}.get(number, 4)]


@pytest.mark.parametrize("number", rows("attribute", kept=True))
def test_kept_attribute_is_read_and_built(cuda: Rig, foreign: Foreign, number: int) -> None:
    made = foreign.graph()
    node = foreign.launch(made, kernel=foreign.kernel(foreign.library(IMAGE), "nothing"))
    if number == 11:  # a preferred cluster needs one
        foreign.attribute(node, 4, value(4))
    foreign.attribute(node, number, value(number))
    (read,) = cuda.device.borrow_template(made).nodes()
    assert dict(read.attrs)[number] == value(number).ljust(64, b"\0")
    function = cuda.device.load_module(SealedImage("text", IMAGE)).function("nothing")
    built = cuda.device.create_template()
    built.add_kernel(function, (1, 1, 1), b"", attrs=read.attrs)
    assert built.nodes()[0].attrs == read.attrs


@pytest.mark.parametrize("number", [n for n in rows("attribute", kept=False) if n not in NO_NODE_HAS])
def test_refused_attribute_is_refused_by_name(cuda: Rig, foreign: Foreign, number: int) -> None:
    made = foreign.graph()
    node = foreign.launch(made, kernel=foreign.kernel(foreign.library(IMAGE), "nothing"))
    assert cuda.device.borrow_template(made).nodes()[0].attrs == []
    foreign.attribute(node, number, value(number))
    with pytest.raises(CaptureError) as refused:
        cuda.device.borrow_template(made)
    assert refused.value.found == f"node 0: attribute {name('attribute', number)} ({number}) on kernel nothing"


@pytest.mark.parametrize("number", NO_NODE_HAS)
def test_attribute_of_launches_and_streams_is_on_no_node(foreign: Foreign, graph: int, number: int) -> None:
    assert number in rows("attribute", kept=False)
    with pytest.raises(RuntimeError):
        foreign.attribute(foreign.launch(graph, kernel=foreign.kernel(foreign.library(IMAGE), "nothing")), number, b"")


@pytest.mark.parametrize("number", [15, 17, 40])
def test_attribute_of_a_newer_driver_is_refused(fake_cuda: FakeCuda, cuda: Rig, foreign: Foreign, number: int) -> None:
    fake_cuda.newer_attribute(number)
    made = foreign.graph()
    node = foreign.launch(made, kernel=foreign.kernel(foreign.library(IMAGE), "nothing"))
    assert cuda.device.borrow_template(made).nodes()[0].attrs == []
    foreign.attribute(node, number, b"\x01")
    with pytest.raises(CaptureError) as refused:
        cuda.device.borrow_template(made)
    assert f"({number})" in refused.value.found


# ---- edges ----


def two_kernels(rig: Rig) -> Template:
    template = rig.device.create_template()
    function = rig.device.load_module(SealedImage("text", IMAGE)).function("nothing")
    template.add_kernel(function, (1, 1, 1), b"")
    return template


@pytest.mark.parametrize(("port", "kind"), [(port, kind) for port in range(4) for kind in range(3)])
def test_edge_is_kept_or_refused_as_the_table_says(cuda: Rig, port: int, kind: int) -> None:
    template = two_kernels(cuda)
    function = template.nodes()[0].function
    assert function is not None
    data = bytes([port, 0, kind, 0, 0, 0, 0, 0])
    if (port, kind) in CUDA_EDGES:
        template.add_kernel(function, (1, 1, 1), b"", [0], data=[data])
        assert template.edges() == [(0, 1, data)]
        return
    with pytest.raises(CaptureError) as refused:
        template.add_kernel(function, (1, 1, 1), b"", [0], data=[data])
    ends = "from kernel nothing to kernel nothing"
    assert refused.value.found == f"an edge of type {kind} from port {port} to port 0, {ends}"


# ---- flags ----


@pytest.mark.parametrize("flag", [*rows("flag"), 16, 32])
def test_flag_is_kept_or_refused_as_the_table_says(cuda: Rig, flag: int) -> None:
    template = two_kernels(cuda)
    if flag in rows("flag", kept=True):
        assert template.instantiate(flag).flags == flag
        return
    with pytest.raises(FlagsError) as refused:
        template.instantiate(flag)
    known = flag in rows("flag")
    assert refused.value.found == f"{name('flag', flag) if known else 'unknown'} ({flag})"
