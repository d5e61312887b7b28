"""Nodes of CUDA graphs: both parameter forms, attributes, memsets, copies, edges; built, read back and borrowed."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import pytest

from fake_cuda.control import FakeCuda
from fake_cuda.foreign import ARRAY, DEVICE, HOST, UNIFIED, Foreign
from heliograph._native import Function, Node, SealedImage, Template
from heliograph.core.format import CUDA_NODE_ATTRIBUTES
from heliograph.device.host import kernel_image, open_host
from heliograph.errors import CaptureError, DriverError, UsageError
from rigs import Rig

KERNELS = b"""fake-image sm_90
mixed 0:1 4:12 16:2 24:8
nothing
tiled 0:8 shared=1024
wide 0:8 cluster=2
tuned 0:8 threads=128
"""
CLUSTER, PRIORITY, DOMAIN_MAP, PREFERRED = 4, 8, 9, 11
SHARED, CONSENT = 8, 14  # function attributes


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


# Of each kept attribute: the members of a value that no plain node has.
VALUES = {
    1: struct.pack("<QQfii", 0x1601_0000_0000, 4096, 0.5, 2, 1),
    2: words(1),
    4: words(2, 1, 1),
    5: words(1),
    8: words(-3),
    9: b"\x01\x00",
    10: words(1),
    11: words(4, 1, 1),
    14: words(75),
}


@pytest.fixture
def foreign(fake_cuda: FakeCuda, cuda: Rig) -> Iterator[Foreign]:
    made = Foreign(fake_cuda)
    yield made
    made.close()


def function(rig: Rig, name: str) -> Function:
    return rig.device.load_module(SealedImage("text", KERNELS)).function(name)


def only(template: Template) -> Node:
    (node,) = template.nodes()
    return node


# ---- parameters ----


@pytest.mark.parametrize("form", [0, 1])
def test_parameters_keep_the_form_they_had(cuda: Rig, form: int) -> None:
    template = cuda.device.create_template()
    data = bytes(range(1, 33))
    template.add_kernel(function(cuda, "mixed"), (2, 1, 1), data, form=form)
    node = only(template)
    assert node.form == form
    assert node.params == data[:1] + bytes(3) + data[4:18] + bytes(6) + data[24:]


def test_function_tells_where_its_parameters_are(cuda: Rig) -> None:
    assert function(cuda, "mixed").params == [(0, 1), (4, 12), (16, 2), (24, 8)]
    assert function(cuda, "nothing").params == []
    host = open_host(workers=1)
    assert host.load_module(SealedImage("probe", kernel_image("generic", "probe"))).function("count").params == []


@pytest.mark.parametrize("form", [0, 1])
def test_random_signatures_keep_every_byte(cuda: Rig, foreign: Foreign, form: int) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    signatures = [[draw.choice([1, 2, 4, 6, 8, 12, 128]) for _ in range(draw.randint(0, 9))] for _ in range(100)]
    layouts = [layout(sizes) for sizes in signatures]
    lines = [f"k{i} " + " ".join(f"{at}:{size}" for at, size in one) for i, one in enumerate(layouts)]
    library = foreign.library("\n".join(["fake-image sm_90", *lines, ""]).encode())
    for i, one in enumerate(layouts):
        end = max((at + size for at, size in one), default=0)
        block = draw.randbytes(end + 16)  # what is behind the parameters is not kept
        graph = foreign.graph()
        pieces = [block[at : at + size] for at, size in one]
        given = {"params": pieces} if form == 0 or not one else {"buffer": block}
        foreign.launch(graph, kernel=foreign.kernel(library, f"k{i}"), **given)  # type: ignore[arg-type]
        node = only(cuda.device.borrow_template(graph))
        expected = bytearray(end)
        for at, size in one:
            expected[at : at + size] = block[at : at + size]
        assert node.params == bytes(expected)
        assert node.form == (form if one else 0)
        assert node.function is not None
        assert (node.function.params, node.function.param_bytes) == (one, end)


def layout(sizes: list[int]) -> list[tuple[int, int]]:
    out, at = [], 0
    for size in sizes:
        align = size & -size if size <= 16 else 8
        at = (at + align - 1) // align * align
        out.append((at, size))
        at += size
    return out


def test_buffer_shorter_than_the_parameters_is_refused_by_the_driver(cuda: Rig, foreign: Foreign) -> None:
    kernel = foreign.kernel(foreign.library(KERNELS), "mixed")
    with pytest.raises(RuntimeError):
        foreign.launch(foreign.graph(), kernel=kernel, buffer=bytes(31))
    foreign.launch(foreign.graph(), kernel=kernel, buffer=bytes(32))


# ---- attributes of nodes ----


def test_every_kept_attribute_has_a_value_here() -> None:
    assert VALUES.keys() == CUDA_NODE_ATTRIBUTES.keys()
    assert {number: len(value) for number, value in VALUES.items()} == CUDA_NODE_ATTRIBUTES


@pytest.mark.parametrize("number", VALUES)
def test_attribute_is_kept_by_member(fake_cuda: FakeCuda, cuda: Rig, number: int) -> None:
    fake_cuda.padding(1)  # never twice the same bytes where there are no members
    attrs = [(CLUSTER, VALUES[CLUSTER])] if number == PREFERRED else []
    attrs.append((number, VALUES[number]))
    template = cuda.device.create_template()
    template.add_kernel(function(cuda, "nothing"), (8, 1, 1), b"", attrs=attrs)
    template.add_kernel(function(cuda, "nothing"), (8, 1, 1), b"")
    changed, plain = template.nodes()
    assert changed.attrs == [(at, value.ljust(64, b"\0")) for at, value in attrs]
    assert plain.attrs == []


def test_default_is_what_the_driver_says_of_a_plain_node(cuda: Rig, foreign: Foreign) -> None:
    """Of memory domains {0, 1} is the default, of a function with a fixed cluster that cluster: zeros are a change."""
    graph = foreign.graph()
    kernel = foreign.kernel(foreign.library(KERNELS), "wide")
    node = foreign.launch(graph, kernel=kernel, grid=(4, 1, 1), params=[bytes(8)])
    assert only(cuda.device.borrow_template(graph)).attrs == []
    foreign.attribute(node, DOMAIN_MAP, bytes(2))
    assert only(cuda.device.borrow_template(graph)).attrs == [(DOMAIN_MAP, bytes(64))]


def test_plain_node_has_the_launch_that_its_function_needs(cuda: Rig, foreign: Foreign) -> None:
    graph = foreign.graph()
    kernel = foreign.kernel(foreign.library(KERNELS), "tuned")
    node = foreign.launch(graph, kernel=kernel, block=(128, 1, 1), params=[bytes(8)])
    foreign.attribute(node, PRIORITY, words(-1))
    assert only(cuda.device.borrow_template(graph)).attrs == [(PRIORITY, words(-1).ljust(64, b"\0"))]


def test_attribute_that_an_older_driver_lacks_is_no_attribute(fake_cuda: FakeCuda, cuda: Rig) -> None:
    fake_cuda.missing_attribute(14)
    template = cuda.device.create_template()
    template.add_kernel(function(cuda, "nothing"), (1, 1, 1), b"", attrs=[(PRIORITY, VALUES[PRIORITY])])
    assert [number for number, _ in only(template).attrs] == [PRIORITY]
    with pytest.raises(DriverError):
        template.add_kernel(function(cuda, "nothing"), (1, 1, 1), b"", attrs=[(14, VALUES[14])])
    assert template.node_count == 1


def test_cluster_of_more_than_eight_blocks_gets_consent(cuda: Rig) -> None:
    kernel = function(cuda, "nothing")
    template = cuda.device.create_template()
    template.add_kernel(kernel, (16, 1, 1), b"", attrs=[(CLUSTER, words(8, 1, 1))])
    assert dict(kernel.attributes)[CONSENT] == 0
    template.add_kernel(kernel, (16, 1, 1), b"", attrs=[(CLUSTER, words(16, 1, 1))])
    assert dict(kernel.attributes)[CONSENT] == 1
    template.add_kernel(kernel, (32, 1, 1), b"", attrs=[(CLUSTER, words(32, 1, 1))])
    with pytest.raises(DriverError):
        template.instantiate()


# ---- attributes of functions ----


def test_shared_memory_is_raised_to_what_a_node_uses(cuda: Rig) -> None:
    kernel = function(cuda, "tiled")
    template = cuda.device.create_template()
    assert dict(kernel.attributes)[SHARED] == (48 << 10) - 1024
    template.add_kernel(kernel, (1, 1, 1), bytes(8), shared_bytes=64 << 10)
    template.add_kernel(kernel, (1, 1, 1), bytes(8), shared_bytes=50 << 10)  # lowers nothing
    assert dict(kernel.attributes)[SHARED] == 64 << 10
    assert [node.shared_bytes for node in template.nodes()] == [64 << 10, 50 << 10]


def test_attributes_are_the_greater_of_function_and_kernel_and_only_rise(cuda: Rig, foreign: Foreign) -> None:
    kernel = foreign.kernel(foreign.library(KERNELS), "tiled")
    foreign.set_kernel(kernel, SHARED, 100 << 10)  # as cuDNN does
    foreign.set_function(foreign.function(kernel), CONSENT, 1)
    graph = foreign.graph()
    foreign.launch(graph, kernel=kernel, params=[bytes(8)])
    found = only(cuda.device.borrow_template(graph)).function
    assert found is not None
    assert dict(found.attributes) == {8: 100 << 10, 9: -1, 11: 0, 12: 0, 13: 0, 14: 1, 15: 0}
    ours = function(cuda, "tiled")
    ours.raise_attributes(found.attributes)
    assert ours.attributes == found.attributes
    ours.raise_attributes([(SHARED, 0)])
    assert ours.attributes == found.attributes


@pytest.mark.parametrize("attribute", [(0, 1), (10, 1), (16, 1), (8, 1 << 40)])
def test_attribute_that_cannot_be_set_is_refused(cuda: Rig, attribute: tuple[int, int]) -> None:
    with pytest.raises(UsageError):
        function(cuda, "tiled").raise_attributes([attribute])
    function(cuda, "tiled").raise_attributes([(8, 1 << 10)])


def test_cluster_fixed_at_compile_time_is_not_set_again(cuda: Rig) -> None:
    wide = function(cuda, "wide")
    wide.raise_attributes(wide.attributes)
    with pytest.raises(DriverError) as refused:
        wide.raise_attributes([(11, 4)])
    assert "CUDA_ERROR_NOT_PERMITTED" in refused.value.found


# ---- memsets and copies ----


@pytest.mark.parametrize(("element", "value"), [(1, 0xAB), (2, 0xABCD), (4, 0xDEADBEEF)])
def test_memset_keeps_elements_and_rows(cuda: Rig, element: int, value: int) -> None:
    template = cuda.device.create_template()
    base = cuda.pool.address
    template.add_memset(base + 64, value, 8, element=element, height=3, pitch=32)
    template.add_memset(base + 256, value, 8, element=element)
    rows, row = template.nodes()
    assert (rows.address, rows.value, rows.element, rows.width) == (base + 64, value, element, 8 // element)
    assert (rows.height, rows.pitch, rows.size) == (3, 32, 72)
    assert (row.height, row.pitch, row.size, row.element) == (1, 0, 8, element)
    template.instantiate().launch(cuda.stream)
    cuda.stream.synchronize()
    one = int.from_bytes(value.to_bytes(element, "little") * (8 // element), "little")
    assert [cuda.word(at=64 + 8 * i) for i in range(10)] == [one, 0, 0, 0, one, 0, 0, 0, one, 0]
    assert cuda.word(at=256) == one


@pytest.mark.parametrize(
    ("value", "size", "element"), [(0x100, 8, 1), (0x10000, 8, 2), (1, 7, 2), (1, 6, 4), (1, 8, 3), (1, 8, 8)]
)
def test_memset_that_is_none_is_refused(cuda: Rig, value: int, size: int, element: int) -> None:
    template = cuda.device.create_template()
    with pytest.raises(UsageError):
        template.add_memset(cuda.pool.address, value, size, element=element)
    template.add_memset(cuda.pool.address, 1, 8, element=4)


def test_copy_of_one_row_is_kept_and_its_start_in_the_row_added(cuda: Rig, foreign: Foreign) -> None:
    base, graph = cuda.pool.address, foreign.graph()
    foreign.copy(graph, base + 512, base, 64, x=32, types=(UNIFIED, UNIFIED))
    node = only(cuda.device.borrow_template(graph))
    assert (node.address, node.source, node.size) == (base + 512, base + 32, 64)


@pytest.mark.parametrize(
    ("what", "how"),
    [
        ("rows", {"height": 2}),
        ("rows", {"depth": 2}),
        ("another row", {"y": 1}),
        ("host memory", {"types": (HOST, DEVICE)}),
        ("host memory", {"types": (DEVICE, HOST)}),
        ("an array", {"types": (DEVICE, ARRAY)}),
    ],
)
def test_copy_that_cannot_be_kept_is_refused(cuda: Rig, foreign: Foreign, what: str, how: dict[str, int]) -> None:
    base, graph = cuda.pool.address, foreign.graph()
    foreign.copy(graph, base + 512, base, 64, **how)  # type: ignore[arg-type]
    with pytest.raises(CaptureError) as refused:
        cuda.device.borrow_template(graph).nodes()
    assert refused.value.found.startswith("node 0: a ")
    assert what in refused.value.found


def test_copy_from_pinned_memory_at_a_unified_address_is_refused(
    fake_cuda: FakeCuda, cuda: Rig, foreign: Foreign
) -> None:
    pinned = cuda.device.pinned(4096)
    managed = 0x7000_0000_0000
    fake_cuda.memory_elsewhere(managed, 4096, managed=True)
    for source, kind in [(pinned.address, "pinned"), (managed + 8, "managed")]:
        graph = foreign.graph()
        foreign.copy(graph, cuda.pool.address, source, 64, types=(UNIFIED, UNIFIED))
        with pytest.raises(CaptureError) as refused:
            cuda.device.borrow_template(graph).nodes()
        assert refused.value.found == f"node 0: a source at {hex(source)}, {kind} memory"


# ---- edges ----


PROGRAMMATIC, LAUNCH_ORDER, EARLY = bytes([1, 0, 1]), bytes([2, 0, 1]), bytes([2, 0, 0])


def test_edge_data_is_kept_with_one_call_for_each_distinct_record(fake_cuda: FakeCuda, cuda: Rig) -> None:
    for fault in (True, False):
        fake_cuda.edge_fault(fault)
        template = cuda.device.create_template()
        kernel = function(cuda, "nothing")
        for _ in range(5):
            template.add_kernel(kernel, (1, 1, 1), b"")
        data = [record.ljust(8, b"\0") for record in (PROGRAMMATIC, b"", PROGRAMMATIC, LAUNCH_ORDER, EARLY)]
        before = fake_cuda.calls("cuGraphAddDependencies")
        template.add_kernel(kernel, (1, 1, 1), b"", range(5), data=data)
        assert fake_cuda.calls("cuGraphAddDependencies") == before + 4
        assert template.edges() == [(i, 5, record) for i, record in enumerate(data)]


@pytest.mark.parametrize("data", [b"\x00\x00\x02", b"\x03", b"\x00\x01", b"\x00\x00\x00\x01", b"\x00\x00\x01", b"\x01"])
def test_edge_that_is_not_in_the_table_is_refused(cuda: Rig, foreign: Foreign, data: bytes) -> None:
    graph, library = foreign.graph(), foreign.library(KERNELS)
    first, second = (foreign.launch(graph, kernel=foreign.kernel(library, "nothing")) for _ in range(2))
    foreign.edge(graph, first, second, data.ljust(8, b"\0"))
    with pytest.raises(CaptureError) as refused:
        cuda.device.borrow_template(graph)
    assert refused.value.found.startswith("node 0, node 1: an edge of type ")
    assert refused.value.found.endswith(", from kernel nothing to kernel nothing")
    template = cuda.device.create_template()
    template.add_empty()
    with pytest.raises(CaptureError) as refused:
        template.add_kernel(function(cuda, "nothing"), (1, 1, 1), b"", [0], data=[data.ljust(8, b"\0")])
    assert refused.value.found.endswith(", from a node of type EMPTY (5) to kernel nothing")
    assert template.node_count == 1
