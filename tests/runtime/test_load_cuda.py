"""A CUDA core in this process: loaded, replayed, self-tested, through the fake driver, which runs its kernels.

Of the public reports in group (a) those about loading and rebuilding: the tests name them. Those that only a GPU can
show (A1's packing by the driver, A19's overlap) have tests beside the GPU ones.
"""

from __future__ import annotations

import gc
import os
import struct
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fake_cuda.control import FakeCuda
from heliograph._native import CudaDevice
from heliograph.core.manifest import Bucket, Item, SelfTest
from heliograph.core.policy import Policy
from heliograph.core.templates import GraphTemplate, KernelNode
from heliograph.core.verify import VerifiedCore, verify
from heliograph.device.cuda import context_limits
from heliograph.errors import (
    AddressTakenError,
    DeviceError,
    DeviceFaultError,
    DriverError,
    HeliographError,
    ModuleError,
    OutOfMemoryError,
    SelfTestError,
    TamperedError,
    TargetError,
    UsageError,
)
from heliograph.runtime import cuda, pinned
from heliograph.runtime.gate import State
from heliograph.runtime.load import Ready, load
from heliograph.runtime.loaded import Loaded
from heliograph.runtime.plan import NODE_BYTES, MemoryPlan
from heliograph.runtime.program import Program
from heliograph.runtime.selftest import state_digest
from heliograph.runtime.spans import Spans
from heliograph.runtime.staging import Staged
from tiny_core import TinyCore, digest
from tiny_cuda_core import (
    CONTENT,
    PROGRAMMATIC,
    ROWS,
    SHARED,
    STACK,
    UNIT,
    VARIABLE,
    cuda_image,
    in_slot,
    tiny_cuda_core,
    without_extras,
)

PARTS = tiny_cuda_core()
IDENTITY = 0x7A6B_5C4D_3E2F_1001  # what the kernel of that name writes
ONE, TWO = {"rows": 1}, {"rows": 2}
ALLOCATIONS = (
    "cuMemCreate", "cuMemMap", "cuMemHostAlloc", "cuModuleLoadData", "cuLibraryLoadData", "cuModuleGetFunction",
    "cuFuncLoad", "cuFuncSetAttribute",
)  # fmt: skip


class Cores:
    """Writes cores, verifies and loads them; what a test leaves open is closed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.open: list[VerifiedCore | Program | CudaDevice] = []
        self.count = 0

    def verified(self, parts: TinyCore = PARTS) -> VerifiedCore:
        self.count += 1
        found = verify(parts.write(self.folder / str(self.count)), Policy.only(parts.key.public_bytes))
        self.open.append(found)
        return found

    def load(self, parts: TinyCore = PARTS, **options: Any) -> Program:
        program = load(self.verified(parts), **options)
        self.open.append(program)
        return program

    def close(self) -> None:
        while self.open:
            self.open.pop().close()


@pytest.fixture
def cores(tmp_path: Path, fake_cuda: FakeCuda) -> Iterator[Cores]:
    made = Cores(tmp_path)
    yield made
    made.close()
    vars(made).clear()
    gc.collect()


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def run(program: Program, *values: float) -> tuple[bytes, bytes]:
    shape = {"rows": len(values) // 4}
    program.write("step", shape, "x", floats(*values))
    program.run("step", **shape)
    return program.read("step", shape, "y"), program.read("step", shape, "z")


def altered(parts: TinyCore, **changes: Any) -> TinyCore:
    return parts.with_core(**changes)


def with_target(**changes: Any) -> TinyCore:
    return altered(PARTS, target=msgspec.structs.replace(PARTS.core.target, **changes))


# ---- load and replay ---------------------------------------------------------------------------------------------


def test_a_cuda_core_is_loaded_and_replayed(cores: Cores) -> None:
    """R22"""
    program = cores.load()
    assert run(program, 1, 2, 3, 4) == (floats(1, 2, 3, 4), floats(2, 4, 6, 8))
    assert run(program, *range(8)) == (floats(*range(8)), floats(*range(0, 16, 2)))
    assert run(program, 5, 6, 7, 8) == (floats(5, 6, 7, 8), floats(10, 12, 14, 16))
    assert all(program.self_test(graph) for graph in range(len(ROWS)))


def test_the_weights_are_on_the_device(cores: Cores) -> None:
    program = cores.load(threads=3)
    assert program._loaded.memory.read("weights", 0, len(PARTS.image)) == PARTS.image


@pytest.mark.parametrize("check", [True, False])
def test_the_bytes_read_and_copied_are_told_and_equal_the_models_size(
    cores: Cores, monkeypatch: pytest.MonkeyPatch, check: bool
) -> None:
    copied: list[tuple[int, int]] = []
    sent = pinned.PinnedLane.sent

    def counting(self: pinned.PinnedLane, offset: int, size: int) -> None:
        sent(self, offset, size)
        copied.append((offset, size))

    monkeypatch.setattr(pinned.PinnedLane, "sent", counting)
    program = cores.load(threads=2, check=check)
    assert program.staged == Staged(bytes_read=len(PARTS.image), threads=2)
    assert sum(size for _, size in copied) == PARTS.core.weights.size == len(PARTS.image)
    assert len({offset for offset, _ in copied}) == len(copied)


def test_a_flipped_weight_byte_is_refused_and_nothing_is_left(cores: Cores, fake_cuda: FakeCuda) -> None:
    """B3, A8"""
    verified = cores.verified()
    slice_file = cores.folder / "1" / PARTS.name / "blobs" / PARTS.core.weights.slices[2].blob
    slice_file.chmod(0o644)
    data = bytearray(slice_file.read_bytes())
    data[77] ^= 1
    slice_file.write_bytes(data)
    with pytest.raises(TamperedError):
        load(verified)
    gc.collect()
    assert fake_cuda.live() == {}
    data[77] ^= 1
    slice_file.write_bytes(data)
    load(verified).close()


def test_state_counters_and_reset(cores: Cores) -> None:
    program = cores.load()
    run(program, 1, 2, 3, 4)
    run(program, 1, 2, 3, 4)
    memory = program._loaded.memory
    assert memory.read("persistent", 0, 8) == (12).to_bytes(8, "little")  # 6 blocks a replay; self-tests left nothing
    assert program.read_state("kv")[UNIT : UNIT + 16] == struct.pack("<4I", 7, 7, 7, 7)
    program.write_state("history", 4, b"abcd")
    assert program.read_state("history")[:8] == b"\0\0\0\0abcd"
    program.reset()
    assert memory.read("persistent", 0, 8) == bytes(8)
    assert not any(program.read_state("kv"))
    assert not any(program.read_state("history"))


@pytest.mark.parametrize("piece", [63, 64, 128, 511])
def test_a_large_state_is_read_in_pieces_for_its_digest(
    cores: Cores, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    """Its self-tests pass, the digest is the same, and nothing more is pinned after it is ready."""
    whole = cores.load()
    wanted = [state_digest(whole._loaded, units) for units in (0, 1, 3)]
    assert whole._loaded.device.counters()["pinned_bytes"] == 0
    whole.close()
    monkeypatch.setattr(pinned, "PIECE_BYTES", piece)
    program = cores.load()
    device = program._loaded.device
    held = device.counters()["pinned_bytes"]
    assert held == pinned.SLOTS * piece
    assert [state_digest(program._loaded, units) for units in (0, 1, 3)] == wanted
    assert device.counters()["pinned_bytes"] == held
    program._loaded.close()
    assert device.counters()["pinned_bytes"] == 0


def test_memory_cannot_be_viewed_where_the_host_cannot_address_it(cores: Cores) -> None:
    program = cores.load()
    with pytest.raises(UsageError, match="read"):
        program.view("step", ONE, "x")
    with pytest.raises(UsageError):
        program.state("kv")
    assert program.status is State.READY


def test_all_inputs_go_in_one_copy_and_all_outputs_come_in_one(cores: Cores, fake_cuda: FakeCuda) -> None:
    program = cores.load()
    before = fake_cuda.all_calls()
    program.write_inputs("step", TWO, floats(*range(16)))
    program.run("step", **TWO)
    y, z = program.read_outputs("step", TWO)
    after = fake_cuda.all_calls()
    copies = {name: after.get(name, 0) - before.get(name, 0) for name in ("cuMemcpyHtoD", "cuMemcpyDtoH")}
    assert copies == {"cuMemcpyHtoD": 1, "cuMemcpyDtoH": 1}
    assert (y, z) == (floats(*range(8)), floats(*range(0, 16, 2)))
    assert program.read("step", TWO, "scale") == floats(*range(8, 16))
    with pytest.raises(UsageError):
        program.write_inputs("step", TWO, bytes(3))


def test_fields_between_which_something_else_lies_are_copied_one_by_one(cores: Cores, fake_cuda: FakeCuda) -> None:
    """The twin: between x and y lies the input that was left out."""
    entry = PARTS.core.entries[0]
    bucket = msgspec.structs.replace(entry.buckets[0], inputs=entry.buckets[0].inputs[:1])
    entry = msgspec.structs.replace(entry, buckets=(bucket, *entry.buckets[1:]))
    program = cores.load(
        replace(
            altered(PARTS, entries=(entry,), self_tests=shorter_inputs()),
            blobs=PARTS.blobs | {digest(bytes([n] * 16)): bytes([n] * 16) for n in range(3)},
        ),
        check=False,
    )
    fields = program._loaded.fields
    assert isinstance(fields, Spans)
    apart = [program.core.buffers[field.buffer] for field in (bucket.inputs[0], bucket.outputs[0])]
    together = [program.core.buffers[field.buffer] for field in bucket.outputs]
    assert fields.span(apart) is None
    assert fields.span(together) is not None
    before = fake_cuda.calls("cuMemcpyHtoD")
    fields.write(apart, floats(*range(8)))
    assert fake_cuda.calls("cuMemcpyHtoD") == before + 2
    assert [bytes(data) for data in fields.read(apart)] == [floats(*range(4)), floats(*range(4, 8))]


def shorter_inputs() -> tuple[SelfTest, ...]:
    """Self-tests whose first graph has one input."""
    test = PARTS.core.self_tests[0]
    cases = tuple(msgspec.structs.replace(case, inputs=digest(bytes([n] * 16))) for n, case in enumerate(test.cases))
    return (msgspec.structs.replace(test, cases=cases), *PARTS.core.self_tests[1:])


def test_held_fields_are_sent_and_fetched(cores: Cores) -> None:
    program = cores.load()
    held = program.hold("step", ONE)
    held.view("x").cast("f")[:] = memoryview(floats(1, 2, 3, 4)).cast("f")
    held.send()
    program.run("step", **ONE)
    held.fetch()
    assert bytes(held.view("z")) == floats(2, 4, 6, 8)
    held.close()


# ---- what only CUDA has ------------------------------------------------------------------------------------------


def test_limits_are_set_before_the_first_module_and_never_lowered(cores: Cores, fake_cuda: FakeCuda) -> None:
    device = CudaDevice()
    cores.open.append(device)
    assert device.limits()["stack"] < STACK
    fake_cuda.fail("cuModuleLoadData", "CUDA_ERROR_OUT_OF_MEMORY")
    fake_cuda.fail("cuLibraryLoadData", "CUDA_ERROR_OUT_OF_MEMORY")
    with pytest.raises(DeviceError):
        load(cores.verified(), device=device)
    assert device.limits()["stack"] == STACK
    device.set_limit("stack", 2 * STACK)
    fake_cuda.heal("cuModuleLoadData")
    fake_cuda.heal("cuLibraryLoadData")
    cores.open.append(load(cores.verified(), device=device))
    assert device.limits()["stack"] == 2 * STACK


def test_a_function_that_takes_more_local_memory_than_the_limit_is_refused(cores: Cores) -> None:
    """It would take memory of the device when it first runs. The twin is every other load."""
    with pytest.raises(ModuleError, match=f"{STACK} bytes of local memory"):
        cores.load(altered(PARTS, limits=(("stack", STACK - 16),)))
    device = CudaDevice()
    cores.open.append(device)
    functions = load(cores.verified(), device=device)._loaded.catalogue.functions
    assert [function.local_bytes for function in functions] == [0, STACK, 0]
    device.set_limit("stack", 16)
    limits = context_limits(device, functions)
    assert limits == tuple(sorted(limits))
    assert dict(limits)["stack"] == STACK


def test_variables_of_modules_are_restored(cores: Cores) -> None:
    """B4"""
    program = cores.load()
    module = program._loaded.catalogue.functions[0].module
    assert module is not None
    assert module.read_global(VARIABLE) == CONTENT


def variable(program: Program) -> bytes:
    module = program._loaded.catalogue.functions[0].module
    assert module is not None
    return module.read_global(VARIABLE)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Every launch adds one to the variable's first byte, as a kernel with a counter would; what it was before each."""
    before: list[bytes] = []
    launch = Loaded.launch

    def counting(self: Loaded, bucket: Bucket) -> None:
        launch(self, bucket)
        self.drain()
        module = self.catalogue.functions[0].module
        assert module is not None
        before.append(module.read_global(VARIABLE))
        module.write_global(VARIABLE, bytes([before[-1][0] + 1]) + before[-1][1:])

    monkeypatch.setattr(Loaded, "launch", counting)
    return before


def content(launches: int) -> bytes:
    return bytes([CONTENT[0] + launches]) + CONTENT[1:]


def test_variables_that_kernels_write_are_after_a_load_as_before_its_self_tests(
    cores: Cores, counted: list[bytes]
) -> None:
    """B4: and each graph's self-test begins with what the capture ended with."""
    program = cores.load()
    assert counted == [content(0), content(1)] * len(ROWS)
    assert variable(program) == CONTENT


def test_a_self_test_of_a_load_writes_variables_once(cores: Cores, fake_cuda: FakeCuda) -> None:
    """After it; before the first launch they are as in the core."""

    def lookups(ready: Ready) -> int:
        before = fake_cuda.calls("cuModuleGetGlobal")
        cores.load(ready=ready).close()
        return fake_cuda.calls("cuModuleGetGlobal") - before

    one, all_of_them = lookups([("step", ONE)]), lookups("all")
    assert one > 0
    assert all_of_them - one == len(ROWS) - 1


def test_self_tests_between_launches_leave_variables_as_they_are(cores: Cores, counted: list[bytes]) -> None:
    program = cores.load(ready=[("step", ONE)])
    run(program, 1, 2, 3, 4)
    assert variable(program) == content(1)
    counted.clear()
    run(program, *range(8))
    assert counted == [content(0), content(1), content(1)]  # two cases of its self-test, then the run
    assert program.self_test(0)
    assert variable(program) == content(2)
    program.reset()
    assert variable(program) == CONTENT


def test_variables_are_put_back_after_a_self_test_that_fails(cores: Cores, counted: list[bytes]) -> None:
    program = cores.load()
    run(program, 1, 2, 3, 4)
    test = program.core.self_tests[0]
    wrong = msgspec.structs.replace(test.cases[0], outputs="1" * 64)
    program._loaded.core = msgspec.structs.replace(
        program.core, self_tests=(msgspec.structs.replace(test, cases=(wrong, *test.cases[1:])),)
    )
    program.core = program._loaded.core
    assert not program.self_test(0)
    assert variable(program) == content(1)


@pytest.mark.parametrize("change", [{"name": "nothing"}, {"size": 4}])
def test_a_variable_that_is_not_as_the_core_says_is_refused(cores: Cores, change: dict[str, Any]) -> None:
    module = PARTS.core.modules[0]
    variable = msgspec.structs.replace(module.globals[0], **change)
    parts = PARTS
    if "size" in change:
        content = CONTENT[: change["size"]]
        variable = msgspec.structs.replace(variable, blob=digest(content))
        parts = replace(PARTS, blobs=PARTS.blobs | {digest(content): content})
    with pytest.raises(ModuleError):
        cores.load(altered(parts, modules=(msgspec.structs.replace(module, globals=(variable,)),)))


def test_function_attributes_are_raised_before_nodes_are_added_and_never_lowered(cores: Cores) -> None:
    """A6: one function in two cores, a large limit first, then a small one, and the other way round."""
    device = CudaDevice()
    cores.open.append(device)
    small = replace(
        PARTS.with_core(slot=0), graphs=tuple(lowered(graph, 1024) for graph in PARTS.graphs),
        function_attributes=(((8, 60 << 10),), (), ()),
    )  # fmt: skip
    for first, second in ((PARTS, small), (small, PARTS)):
        for parts in (first, second):
            program = load(cores.verified(parts), device=device)
            assert dict(program._loaded.catalogue.functions[0].attributes)[8] >= 60 << 10
            program.close()


def lowered(graph: GraphTemplate, shared: int) -> GraphTemplate:
    return replace(
        graph,
        nodes=tuple(
            replace(node, shared=shared) if isinstance(node, KernelNode) and node.shared else node
            for node in graph.nodes
        ),
    )


def test_shared_memory_is_raised_to_what_launches_ask_for(cores: Cores) -> None:
    """Libraries launch with more than the attribute says."""
    program = cores.load(replace(PARTS, function_attributes=(((8, 1024),), (), ())))
    assert dict(program._loaded.catalogue.functions[0].attributes)[8] == SHARED


def test_what_is_rebuilt_is_what_is_stored(cores: Cores) -> None:
    """R20, B5, A5, A19: every node's fields, forms, attributes and edge data, in order."""
    program = cores.load()
    for graph, stored in enumerate(PARTS.graphs):
        template = program._loaded.catalogue.build(graph)
        nodes = template.nodes()
        for node, kept in zip(nodes, stored.nodes, strict=True):
            if isinstance(kept, KernelNode):
                assert (node.grid, node.block, node.shared_bytes) == (kept.grid, kept.block, kept.shared)
                assert (node.form, node.params) == (kept.form, kept.params)
                assert [number for number, _ in node.attrs] == [number for number, _ in kept.attrs]
                assert all(value[:4] == kept.attrs[0][1] for _, value in node.attrs)
        edges = template.edges()
        assert edges == sorted(((e.source, e.target, e.data) for e in stored.edges), key=lambda e: (e[1], e[0]))
        assert [data for *_, data in edges].count(PROGRAMMATIC) == 1
        template.close()
        assert program._loaded.catalogue.executable(graph).flags == stored.flags == 9


def test_a_function_with_other_parameters_is_refused(cores: Cores) -> None:
    """A1: sizes are the driver's."""
    functions = tuple(
        msgspec.structs.replace(each, param_bytes=16) if each.name == "add" else each for each in PARTS.core.functions
    )

    def shorter(graph: GraphTemplate) -> GraphTemplate:
        nodes = tuple(
            replace(node, params=node.params[:16], refs=node.refs[:2]) if getattr(node, "function", 0) == 1 else node
            for node in graph.nodes
        )
        return replace(graph, nodes=nodes)

    with pytest.raises(ModuleError, match="bytes of parameters"):
        cores.load(replace(altered(PARTS, functions=functions), graphs=tuple(map(shorter, PARTS.graphs))))


def test_one_name_in_two_images_is_two_functions(cores: Cores) -> None:
    """R13, A16: each node launches the function of its own image."""
    words = (IDENTITY, 0x0123_4567_89AB_CDEF)
    images = [cuda_image().replace(IDENTITY.to_bytes(8, "little"), word.to_bytes(8, "little")) for word in words]
    modules = tuple(
        msgspec.structs.replace(PARTS.core.modules[0], blob=digest(image), family=f"cubin-{digest(image)[:12]}")
        for image in images
    )
    functions = (
        msgspec.structs.replace(PARTS.core.functions[0], name="identity"),
        PARTS.core.functions[1],
        msgspec.structs.replace(PARTS.core.functions[2], name="identity", module=1, param_bytes=8),
    )

    def named(graph: GraphTemplate) -> GraphTemplate:
        nodes = tuple(
            replace(node, params=node.params[:8]) if isinstance(node, KernelNode) and node.function == 2 else node
            for node in graph.nodes
        )
        return replace(graph, nodes=nodes)

    parts = replace(
        altered(PARTS, modules=modules, functions=functions),
        graphs=tuple(map(named, PARTS.graphs)),
        blobs=PARTS.blobs | {digest(image): image for image in images},
    )
    program = cores.load(parts, check=False)
    program.run("step", **ONE)
    found = program._loaded.memory.read("persistent", 0, 8), program.read_state("kv")[UNIT : UNIT + 8]
    assert found == tuple(word.to_bytes(8, "little") for word in words)


# ---- the machine -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change", [{"arch": "sm_100"}, {"processors": 114}, {"shared_optin": 1 << 20}, {"driver": 14000}]
)
def test_a_core_for_another_device_is_refused_before_anything_is_mapped(
    cores: Cores, fake_cuda: FakeCuda, change: dict[str, Any]
) -> None:
    """A10, A27"""
    with pytest.raises(TargetError):
        cores.load(with_target(**change))
    assert fake_cuda.calls("cuMemAddressReserve") == fake_cuda.calls("cuMemCreate") == 0


@pytest.mark.parametrize("name", ["Fake H200", "Fake H100", None])
def test_another_model_of_gpu_is_told(cores: Cores, name: str | None) -> None:
    device = (Item(name="name", value=name),) if name else ()
    parts = replace(PARTS, provenance=msgspec.structs.replace(PARTS.provenance, device=device))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        program = cores.load(parts)
    assert len(told) == (name == "Fake H100")
    assert not told or "made on Fake H100, this is Fake H200" in str(told[0].message)
    assert run(program, 1, 2, 3, 4)[1] == floats(2, 4, 6, 8)


def test_without_a_driver_the_error_says_so(cores: Cores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIOGRAPH_LIBCUDA", "/nowhere/libcuda.so")
    with pytest.raises(DriverError, match="libcuda"):
        cores.load()


def test_a_core_loads_on_another_device(cores: Cores) -> None:
    """A13"""
    program = cores.load(index=1)
    device = program._loaded.device
    assert isinstance(device, CudaDevice)
    assert device.index == 1
    assert run(program, 1, 2, 3, 4)[1] == floats(2, 4, 6, 8)


def test_an_address_that_is_taken_is_refused(cores: Cores, fake_cuda: FakeCuda) -> None:
    """R23, A9"""
    verified = cores.verified()
    fake_cuda.ignore_hints(1)
    with pytest.raises(AddressTakenError):
        load(verified)
    gc.collect()
    assert fake_cuda.live() == {}
    load(verified).close()


def test_the_driver_is_told_to_compile_nothing(cores: Cores, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_DISABLE_PTX_JIT", "CUDA_CACHE_DISABLE"):
        monkeypatch.setenv(name, "0")
    cores.load()
    assert (os.environ["CUDA_DISABLE_PTX_JIT"], os.environ["CUDA_CACHE_DISABLE"]) == ("1", "1")


# ---- memory ------------------------------------------------------------------------------------------------------


def test_the_plan_counts_what_the_driver_takes(cores: Cores, fake_cuda: FakeCuda) -> None:
    """In the order of the plan: stacks of all resident threads, executables, images, staging, margin, then units."""
    plan = cores.load().plan
    assert plan.executables == NODE_BYTES * sum(graph.nodes for graph in PARTS.core.graphs)
    assert plan.overhead.local >= STACK * 132 * 2048
    assert plan.overhead.modules == PARTS.core.modules[0].size
    assert plan.overhead.staging > 0
    assert plan.needed + plan.margin <= plan.budget


@pytest.mark.parametrize("units", [3, 4, 1000, 8193, 20000])
def test_the_growing_memory_is_sized_at_load(cores: Cores, units: int) -> None:
    """B7"""
    program = cores.load(units=units)
    assert program.units == units
    assert len(program.read_state("kv")) == units * UNIT
    assert run(program, 1, 2, 3, 4)[1] == floats(2, 4, 6, 8)


def test_each_load_serves_or_is_refused_with_numbers(cores: Cores, fake_cuda: FakeCuda) -> None:
    """A7: device memory in steps around the limit. Never out of memory after ready."""
    verified = cores.verified()
    enough = load(verified)
    plan = enough.plan
    enough.close()
    need = plan.needed - plan.units * plan.unit_bytes
    outcomes = []
    for step in range(-4, 8):
        fake_cuda.limit_memory((need + step * (8 << 20)) * 50 // 49)
        before = fake_cuda.calls("cuMemHostAlloc")
        program, said = None, ""
        try:
            program = load(verified)
        except OutOfMemoryError as error:
            said = error.required
        outcomes.append(said)
        if program is None:
            assert str(plan.overhead.local) in said
            assert fake_cuda.calls("cuMemHostAlloc") == before  # before the first byte of weights was copied
        else:
            for values in ((1, 2, 3, 4), range(8)):
                run(program, *values)
            program.close()
    assert outcomes[0]
    assert not outcomes[-1]


EXECUTABLE = NODE_BYTES  # of each the fake takes, beside its nodes


@pytest.mark.parametrize("fill", [False, True])
@pytest.mark.parametrize("ready", ["all", (), (("step", ONE),)], ids=["all", "none", "one"])
def test_what_is_built_after_the_load_comes_out_of_the_plan(
    cores: Cores, fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, ready: Ready, fill: bool
) -> None:
    """A7: with the least memory that a load accepts every bucket runs, also those that it did not build."""
    monkeypatch.setattr(cuda, "ROUNDING", EXECUTABLE * len(PARTS.graphs))
    verified = cores.verified()
    program = load_with_least(verified, fake_cuda, ready=ready, memory=1 << 50 if fill else None)
    cores.open.append(program)
    fake_cuda.limit_memory(left_by_plan(program.plan))
    for values in ((1, 2, 3, 4), range(8)):
        assert run(program, *values)[0] == floats(*values)
    assert all(program.self_test(graph) for graph in range(len(ROWS)))
    assert fake_cuda.memory_in_use() <= left_by_plan(program.plan)


def load_with_least(verified: VerifiedCore, driver: FakeCuda, **options: Any) -> Program:
    """The load with the least device memory that is not refused, to 4 KiB."""
    refused, accepted = 0, 1 << 34
    while accepted - refused > 4096:
        driver.limit_memory((refused + accepted) // 2)
        try:
            load(verified, **options).close()
        except OutOfMemoryError:
            refused = (refused + accepted) // 2
        else:
            accepted = (refused + accepted) // 2
    driver.limit_memory(accepted)
    return load(verified, **options)


def left_by_plan(plan: MemoryPlan) -> int:
    """What is left for regions and executables, which the fake charges, when the driver has taken the rest."""
    return plan.budget - plan.margin - plan.overhead.total + plan.overhead.rounding


def test_after_a_failed_load_the_same_process_loads(cores: Cores, fake_cuda: FakeCuda) -> None:
    """A8: at each call of the driver that takes something or asks; those that give back are not told to fail."""
    verified = cores.verified()
    load(verified).close()
    back = ("Free", "Unmap", "Release", "Destroy", "Unload", "PopCurrent", "GetError", "GetProcAddress")
    names = [name for name in fake_cuda.all_calls() if not any(part in name for part in back)]
    assert {"cuMemCreate", "cuMemHostAlloc", "cuModuleLoadData", "cuGraphAddNode", "cuCtxSetLimit"} <= set(names)
    for name in sorted(names):
        fake_cuda.fail(name, "CUDA_ERROR_OUT_OF_MEMORY")
        with suppress(HeliographError):
            load(verified).close()
        fake_cuda.heal(name)
        gc.collect()
        load(verified).close()
    assert fake_cuda.misuse() == ""


# ---- after ready -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ready", [(), [("step", ONE)]], ids=["none", "one"])
def test_after_ready_nothing_is_loaded_and_no_memory_is_taken(cores: Cores, fake_cuda: FakeCuda, ready: Ready) -> None:
    """A18: also by buckets that are built later."""
    program = cores.load(ready=ready)
    device = program._loaded.device
    before = {name: fake_cuda.calls(name) for name in ALLOCATIONS}
    mapped, modules = (device.counters()[name] for name in ("bytes_mapped", "modules_loaded"))
    run(program, 1, 2, 3, 4)
    assert not program.is_ready("step", **TWO)
    run(program, *range(8))
    assert program.is_ready("step", **TWO)
    program.self_test(0)
    program.reset()
    assert {name: fake_cuda.calls(name) for name in ALLOCATIONS} == before
    assert (device.counters()["bytes_mapped"], device.counters()["modules_loaded"]) == (mapped, modules)


def test_executables_are_as_many_as_graphs_however_long_it_runs(cores: Cores) -> None:
    """A28"""
    program = cores.load()
    for _ in range(50):
        run(program, 1, 2, 3, 4)
        run(program, *range(8))
        program.self_test(1)
    assert program._loaded.device.counters()["executables_live"] == len(PARTS.graphs)


def test_two_cores_in_two_slots_do_not_touch_each_other(cores: Cores) -> None:
    """A12, A22: one is closed, and the other gives what it gave."""
    device = CudaDevice()
    cores.open.append(device)
    first = load(cores.verified(), device=device)
    second = load(cores.verified(in_slot(PARTS, 1)), device=device)
    cores.open.append(second)
    assert run(first, 1, 2, 3, 4)[1] == floats(2, 4, 6, 8)
    before = run(second, 5, 6, 7, 8), second.read_state("kv")
    with pytest.raises(AddressTakenError, match=PARTS.name):
        load(cores.verified(), device=device)
    first.close()
    third = load(cores.verified(), device=device)
    cores.open.append(third)
    for _ in range(20):
        run(third, *range(8))
        assert (run(second, 5, 6, 7, 8), second.read_state("kv")) == before


def test_a_wrong_result_is_refused_before_ready(cores: Cores) -> None:
    """B6"""
    test = PARTS.core.self_tests[0]
    case = msgspec.structs.replace(test.cases[0], outputs="1" * 64)
    tests = (msgspec.structs.replace(test, cases=(case, *test.cases[1:])), *PARTS.core.self_tests[1:])
    with pytest.raises(SelfTestError):
        cores.load(altered(PARTS, self_tests=tests))
    cores.load(altered(PARTS, self_tests=PARTS.core.self_tests))


@pytest.mark.parametrize("call", ["cuGraphInstantiateWithFlags", "cuGraphLaunch", "cuGraphAddNode"])
def test_a_driver_that_refuses_later_ends_the_run_with_an_error(cores: Cores, fake_cuda: FakeCuda, call: str) -> None:
    """A26: one attempt, then an error; nothing is tried for ever."""
    program = cores.load(ready=[("step", ONE)])
    before = fake_cuda.calls(call)
    fake_cuda.fail(call, "CUDA_ERROR_INVALID_VALUE", nth=0)
    with pytest.raises(DeviceError):
        run(program, *range(8))
    assert fake_cuda.calls(call) - before <= 2
    assert program.status is State.FAILED


def test_a_fault_fails_the_program_which_can_still_be_closed(cores: Cores, fake_cuda: FakeCuda) -> None:
    """R26"""
    program = cores.load()
    fake_cuda.fault_kernel("add", "CUDA_ERROR_ILLEGAL_ADDRESS")
    with pytest.raises(DeviceFaultError):
        run(program, 1, 2, 3, 4)
    assert program.status is State.FAILED
    with pytest.raises(UsageError):
        program.run("step", **ONE)
    program.close()
    assert program.status is State.UNLOADED


@pytest.mark.parametrize(
    "name", ["read", "write", "read_outputs", "write_inputs", "read_state", "write_state", "reset"]
)
def test_whoever_sees_a_fault_first_fails_the_program(cores: Cores, fake_cuda: FakeCuda, name: str) -> None:
    """R26: a launch returns before its kernels run; the next call of any kind may be told."""
    program = cores.load()
    fake_cuda.fault_kernel("add", "CUDA_ERROR_ILLEGAL_ADDRESS")
    fake_cuda.kernel_time(20_000)
    program.launch("step", **ONE)
    time.sleep(0.2)  # the kernels have run, and nobody has asked yet
    with pytest.raises(DeviceFaultError):
        STATES[name](program)
    assert program.status is State.FAILED
    program.close()


STATES: dict[str, Callable[[Program], object]] = {
    "read": lambda program: program.read("step", ONE, "y"),
    "write": lambda program: program.write("step", ONE, "x", bytes(16)),
    "write_inputs": lambda program: program.write_inputs("step", ONE, bytes(32)),
    "read_outputs": lambda program: program.read_outputs("step", ONE),
    "read_state": lambda program: program.read_state("kv"),
    "write_state": lambda program: program.write_state("kv", 0, b"0"),
    "run": lambda program: program.run("step", **ONE),
    "reset": lambda program: program.reset(),
    "self_test": lambda program: program.self_test(0),
}


@pytest.mark.parametrize("name", STATES)
def test_a_closed_program_refuses_every_call(cores: Cores, name: str) -> None:
    """A31"""
    program = cores.load()
    STATES[name](program)
    program.close()
    with pytest.raises(UsageError):
        STATES[name](program)


def test_a_core_without_weights_variables_and_attributes_loads(cores: Cores) -> None:
    plain = tiny_cuda_core(weight_bytes=0)
    program = cores.load(without_extras(plain))
    assert run(program, 1, 2, 3, 4)[0] == floats(1, 2, 3, 4)
    assert program.core.modules[0].globals == ()
