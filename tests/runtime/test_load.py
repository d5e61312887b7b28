"""A load gives a program or gives everything back; nothing is mapped elsewhere, nothing is taken on trust."""

from __future__ import annotations

import ast
import gc
import os
import resource
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from heliograph.core.format import CHUNK_BYTES, SLOTS, region_base
from heliograph.core.manifest import Core
from heliograph.core.policy import Policy
from heliograph.core.sign import SigningKey
from heliograph.core.verify import VerifiedCore, verify
from heliograph.core.write import DraftWriter, publish
from heliograph.device.host import open_host
from heliograph.errors import (
    AddressTakenError,
    HeliographError,
    ModuleError,
    OutOfMemoryError,
    SelfTestError,
    TamperedError,
    TargetError,
    UsageError,
)
from heliograph.runtime.load import Ready, load
from heliograph.runtime.program import Program
from study import COLS, PROVENANCE, UNIT_BYTES, UNITS, Study, check, draft, host_level, make, with_results


def maps() -> list[str]:
    """The mappings of this process that are a core's: its regions and its kernel modules."""
    gc.collect()
    text = Path("/proc/self/maps").read_text()
    return [line.split()[0] for line in text.splitlines() if ours(line)]


def ours(line: str) -> bool:
    first = int(line.split("-")[0], 16)
    slots = (region_base(slot, "weights") for slot in range(SLOTS))
    return any(base <= first < base + (4 << 40) for base in slots) or "memfd:" in line


def run_once(program: Program, rows: int = 2) -> bytes:
    shape = {"rows": rows}
    program.write("step", shape, "x", struct.pack(f"<{rows * COLS}f", *range(rows * COLS)))
    program.write("step", shape, "ids", struct.pack(f"<{rows}i", *range(1, rows + 1)))
    program.run("step", **shape)
    return program.read("step", shape, "out")


@pytest.fixture
def policy(key: SigningKey) -> Policy:
    return Policy.only(key.public_bytes)


def altered(folder: Path, study: Study, key: SigningKey, change: Callable[[Core], Core]) -> Path:
    """A core whose record was changed after its checker had passed, signed afresh."""
    with DraftWriter(folder) as writer:
        made = draft(study, writer)
        core = change(with_results(made.core, check(made)))
        return publish(made.draft, core, PROVENANCE, made.graphs, key, name="altered")


def test_a_loaded_core_computes(verified: VerifiedCore) -> None:
    with load(verified, workers=2) as program:
        out = memoryview(run_once(program)).cast("f")
        total = memoryview(program.read("step", {"rows": 2}, "sum")).cast("f")
    weights = memoryview(Study().weights).cast("f")
    for column in (0, 5, COLS - 1):
        summed = sum(weights[row * COLS + column] for row in range(len(weights) // COLS))
        assert out[column] == pytest.approx(column * summed + 1 / (column + 1), rel=1e-3, abs=1e-2)
        assert total[column] == out[column]


def test_the_phases_of_a_load_are_timed(verified: VerifiedCore) -> None:
    with load(verified) as program:
        phases = dict(program.phases)
    names = ["device", "reserve", "map", "modules", "contents", "graphs", "weights", "self-tests", "total"]
    assert list(phases) == names
    assert 0 < sum(phases[name] for name in names[:-1]) <= phases["total"]


def test_a_closed_program_leaves_no_mapping_and_no_descriptor(verified: VerifiedCore) -> None:
    with load(verified) as program:
        run_once(program)
    del program
    before, descriptors = maps(), len(os.listdir("/proc/self/fd"))
    with load(verified) as program:
        assert maps() != before
        run_once(program)
    del program
    assert maps() == before == []
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_loading_again_and_again_takes_no_more_memory(verified: VerifiedCore) -> None:
    def once() -> None:
        with load(verified, workers=2) as program:
            run_once(program)

    for _ in range(3):
        once()
    gc.collect()
    before = resident()
    for _ in range(20):
        once()
    gc.collect()
    assert resident() - before < 4 << 20  # 20 copies of the weights would be 100 MiB


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


# ---- what can go wrong, and a second try in the same process ---------------------------------------------------------


class Failing(VerifiedCore):
    """A verified core one of whose methods fails once."""

    def __init__(self, verified: VerifiedCore, method: str, calls_before: int) -> None:
        self.__dict__.update(verified.__dict__)
        self.method, self.left = method, calls_before

    def step(self, method: str) -> None:
        if method == self.method:
            self.left -= 1
            if self.left < 0:
                self.method = ""
                raise OSError(5, f"planted in {method}")

    def blob(self, digest: str) -> bytes:
        self.step("blob")
        return super().blob(digest)

    def read_chunk(self, chunk: int, into: memoryview) -> int:
        self.step("read_chunk")
        return super().read_chunk(chunk, into)


@pytest.mark.parametrize(
    ("method", "calls_before"),
    [("blob", 0), ("blob", 1), ("blob", 2), ("blob", 3), ("blob", 7), ("read_chunk", 0), ("read_chunk", 1)],
    ids=["module", "constants", "persistent", "first inputs", "later inputs", "first chunk", "last chunk"],
)
def test_a_failed_load_gives_everything_back_and_the_next_one_works(
    verified: VerifiedCore, method: str, calls_before: int
) -> None:
    before = maps()
    failing = Failing(verified, method, calls_before)
    with pytest.raises(OSError, match=f"planted in {method}"):
        load(failing)
    assert maps() == before
    with load(failing) as program:
        run_once(program)
    del program
    assert maps() == before


@pytest.mark.parametrize("region", ["weights", "constants", "persistent", "io", "scratch", "state"])
def test_a_taken_address_is_refused_and_what_was_reserved_before_is_given_back(
    verified: VerifiedCore, region: str
) -> None:
    device = open_host(workers=1)
    before = maps()
    taken = device.reserve(region_base(0, region) + (1 << 30), 1 << 20)
    with pytest.raises(AddressTakenError) as caught:
        load(verified, device=device)
    assert f"{region_base(0, region) + (1 << 30):x}" in caught.value.found
    taken.close()
    assert maps() == before
    with load(verified, device=device) as program:
        run_once(program)
    del program
    device.close()
    assert maps() == before


def test_memory_limits_in_steps_work_or_are_refused_with_numbers_before_weights_are_copied(
    verified: VerifiedCore,
) -> None:
    class Counting(VerifiedCore):
        def __init__(self) -> None:
            self.__dict__.update(verified.__dict__)
            self.chunks = 0

        def read_chunk(self, chunk: int, into: memoryview) -> int:
            self.chunks += 1
            return super().read_chunk(chunk, into)

    outcomes = []
    for limit in range(4 << 20, 9 << 20, 256 << 10):
        counting = Counting()
        refused: OutOfMemoryError | None = None
        try:
            with load(counting, memory=limit) as program:
                run_once(program)
        except OutOfMemoryError as error:
            refused = error
        outcomes.append(refused is None)
        assert counting.chunks == (-(-verified.core.weights.size // CHUNK_BYTES) if refused is None else 0)
        assert refused is None or str(limit) in refused.found
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {True, False}


def test_a_device_with_too_little_memory_refuses_before_weights_are_copied(verified: VerifiedCore) -> None:
    before = maps()
    for limit in (1 << 20, 5 << 20, verified.core.weights.size):
        device = open_host(workers=1, memory_limit=limit)
        with pytest.raises(OutOfMemoryError):
            load(verified, device=device)
        assert device.counters()["bytes_mapped"] == 0
        device.close()
    assert maps() == before
    device = open_host(workers=1, memory_limit=16 << 20)
    with load(verified, device=device) as program:
        run_once(program)
    device.close()


def test_growing_state_takes_no_more_than_a_limited_device_has(verified: VerifiedCore) -> None:
    units = []
    for limit in (8 << 20, 16 << 20):
        device = open_host(workers=1, memory_limit=limit)
        with load(verified, device=device, memory=1 << 40) as program:
            run_once(program)
            units.append(program.plan.units)
            assert device.counters()["bytes_mapped"] + device.counters()["executable_bytes"] <= limit
        device.close()
    assert UNITS < units[0] < units[1] - (7 << 20) // UNIT_BYTES


# ---- other bytes than those signed or checked ------------------------------------------------------------------------


def weight_file(core: Path, verified: VerifiedCore) -> Path:
    return core / "blobs" / verified.core.weights.slices[0].blob


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory, key: SigningKey) -> Path:
    return make(tmp_path_factory.mktemp("single"), Study(rows=(1,)), key)


@pytest.fixture
def own_core(single: Path, tmp_path: Path) -> Path:
    """A core that a test may damage."""
    return shutil.copytree(single, tmp_path / "study")


def test_a_flipped_weight_byte_is_refused(own_core: Path, policy: Policy) -> None:
    with verify(own_core, policy) as verified:
        path = weight_file(own_core, verified)
        path.chmod(0o644)
        data = bytearray(path.read_bytes())
        data[12345] ^= 1
        path.write_bytes(data)
    with verify(own_core, policy) as verified, pytest.raises(TamperedError):
        load(verified)
    data[12345] ^= 1
    path.write_bytes(data)
    with verify(own_core, policy) as verified, load(verified) as program:
        run_once(program, 1)


def test_an_altered_weight_byte_with_a_fresh_valid_signature_fails_the_self_test(
    tmp_path: Path, key: SigningKey, policy: Policy
) -> None:
    study = Study(rows=(1,))
    with DraftWriter(tmp_path) as writer:
        made = draft(study, writer)
        report = check(made)
    weights = bytearray(study.weights)
    weights[4 * COLS * 3000 + 3] ^= 0x40  # an exponent
    for name, image in (("same", study.weights), ("other", bytes(weights))):
        with DraftWriter(tmp_path) as writer:
            made = draft(Study(rows=(1,), weights=image), writer)
            core = publish(made.draft, with_results(made.core, report), PROVENANCE, made.graphs, key, name=name)
        with verify(core, policy) as verified:
            if name == "same":
                load(verified).close()
                continue
            before = maps()
            with pytest.raises(SelfTestError) as caught:
                load(verified)
            assert "step/1" in caught.value.doing
            assert maps() == before


class Changing(VerifiedCore):
    """A verified core whose weight file is changed on disk in the middle of the load."""

    def __init__(self, verified: VerifiedCore, change: Callable[[], None]) -> None:
        self.__dict__.update(verified.__dict__)
        self.change = change

    def read_chunk(self, chunk: int, into: memoryview) -> int:
        size = super().read_chunk(chunk, into)
        if chunk == 0:
            self.change()
        return size


@pytest.mark.parametrize("how", ["truncated", "overwritten"])
def test_a_file_changed_in_place_while_loading_is_refused(own_core: Path, policy: Policy, how: str) -> None:
    with verify(own_core, policy) as verified:
        path = own_core / "blobs" / verified.core.weights.slices[-1].blob
        path.chmod(0o644)

        def change() -> None:
            if how == "truncated":
                os.truncate(path, 100)
            else:
                with path.open("r+b") as file:
                    file.write(b"\xff" * 4096)

        with pytest.raises(TamperedError):
            load(Changing(verified, change), threads=1)


def test_a_file_replaced_while_loading_changes_nothing(own_core: Path, policy: Policy) -> None:
    with verify(own_core, policy) as verified:
        path = own_core / "blobs" / verified.core.weights.slices[-1].blob
        verified.open_weights(len(verified.core.weights.slices) - 1)  # as when the load has begun with that file

        def change() -> None:
            other = path.with_name("other")
            other.write_bytes(bytes(path.stat().st_size))
            other.rename(path)

        with load(Changing(verified, change), threads=1) as program:
            run_once(program, 1)


def test_files_that_vanish_after_the_load_change_nothing(own_core: Path, policy: Policy) -> None:
    with verify(own_core, policy) as verified:
        program = load(verified, ready=[])
    with program:
        first = run_once(program, 1)
        program.reset()
        for path in (own_core / "blobs").iterdir():
            path.chmod(0o644)
            os.truncate(path, 0)
        assert run_once(program, 1) == first


# ---- other machines and other modules --------------------------------------------------------------------------------


def test_a_core_for_another_instruction_set_is_refused(tmp_path: Path, key: SigningKey, policy: Policy) -> None:
    def foreign(core: Core) -> Core:
        return msgspec.structs.replace(core, target=msgspec.structs.replace(core.target, arch="z80"))

    core = altered(tmp_path, Study(rows=(1,)), key, foreign)
    before = maps()
    with verify(core, policy) as verified, pytest.raises(TargetError) as caught:
        load(verified)
    assert "z80" in caught.value.found
    assert maps() == before


def test_a_module_of_another_level_is_refused(tmp_path: Path, key: SigningKey, policy: Policy) -> None:
    """Twin: every other test, where target and module agree."""

    def raised(core: Core) -> Core:
        return msgspec.structs.replace(core, target=msgspec.structs.replace(core.target, arch=host_level()))

    assert host_level() != "generic"
    core = altered(tmp_path, Study(rows=(1,)), key, raised)
    with verify(core, policy) as verified, pytest.raises(ModuleError) as caught:
        load(verified)
    assert "generic" in caught.value.found
    assert host_level() in caught.value.required


def test_a_function_that_the_module_does_not_have_is_refused(tmp_path: Path, key: SigningKey, policy: Policy) -> None:
    def renamed(core: Core) -> Core:
        functions = [msgspec.structs.replace(each, name=f"{each.name}2") for each in core.functions]
        return msgspec.structs.replace(core, functions=tuple(functions))

    core = altered(tmp_path, Study(rows=(1,)), key, renamed)
    before = maps()
    with verify(core, policy) as verified, pytest.raises(ModuleError):
        load(verified)
    assert maps() == before


# ---- slots and units -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def other_slot(tmp_path_factory: pytest.TempPathFactory, key: SigningKey) -> Path:
    return make(tmp_path_factory.mktemp("other"), Study(slot=3, seed=2, rows=(1, 2)), key, name="other")


def test_cores_of_two_slots_run_side_by_side_and_one_outlives_the_other(
    verified: VerifiedCore, other_slot: Path, policy: Policy
) -> None:
    with load(verified) as alone:
        expected = run_once(alone)
    with verify(other_slot, policy) as second, load(verified) as one, load(second) as two:
        first = run_once(one)
        assert run_once(two) != first == expected
        two.close()
        one.reset()
        assert run_once(one) == expected


def test_a_load_reads_each_file_with_few_large_calls(verified: VerifiedCore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system charges for each call: no more of them than chunks, with files as large as the cap."""
    calls: list[int] = []
    read = os.preadv

    def counted(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        calls.append(sum(len(each) for each in buffers))
        return read(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", counted)
    load(verified).close()
    assert sum(calls) == verified.core.weights.size
    assert len(calls) == -(-verified.core.weights.size // CHUNK_BYTES)


def test_two_cores_of_one_slot_are_refused_by_name(verified: VerifiedCore, study_core: Path, policy: Policy) -> None:
    with load(verified) as program, verify(study_core, policy) as again:
        expected = run_once(program)
        with pytest.raises(AddressTakenError) as caught:
            load(again)
        assert "study" in caught.value.found
        program.reset()
        assert run_once(program) == expected
    with verify(study_core, policy) as again, load(again) as program:
        assert run_once(program) == expected


def test_a_program_that_is_dropped_gives_its_addresses_back(verified: VerifiedCore) -> None:
    program = load(verified)
    expected = run_once(program)
    del program
    gc.collect()
    assert maps() == []
    with load(verified) as program:
        assert run_once(program) == expected


@pytest.fixture
def expected(verified: VerifiedCore) -> bytes:
    with load(verified) as program:
        return run_once(program)


@pytest.mark.parametrize("units", [UNITS, UNITS + 1, 100, 5000])
def test_any_number_of_units_gives_the_same_results(verified: VerifiedCore, expected: bytes, units: int) -> None:
    with load(verified, units=units) as program:
        assert program.units == units
        with program.state("cache") as cache:
            assert cache.nbytes == units * UNIT_BYTES
        assert run_once(program) == expected


def test_the_last_of_a_terabyte_of_units_is_like_the_first(
    verified: VerifiedCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sparse: only what is touched takes memory. A block offset in 32 bits would wrap."""
    monkeypatch.setattr("heliograph.runtime.budget.available_bytes", lambda: 2 << 40)
    units = (1 << 40) // UNIT_BYTES
    with load(verified, units=units) as program:
        shape, x = {"rows": 1}, struct.pack(f"<{COLS}f", *range(COLS))
        outs = []
        for unit in (1, units - 1):
            program.write("step", shape, "x", x)
            program.write("step", shape, "ids", struct.pack("<i", unit))
            program.run("step", **shape)
            program.run("step", **shape)
            outs.append(program.read("step", shape, "out"))
        with program.state("cache") as cache:
            first = bytes(cache[UNIT_BYTES : 2 * UNIT_BYTES])
            assert first == bytes(cache[-UNIT_BYTES:]) != bytes(UNIT_BYTES)
    assert outs[0] == outs[1]


def test_fewer_units_than_the_self_tests_use_are_refused(verified: VerifiedCore) -> None:
    before = maps()
    with pytest.raises(UsageError):
        load(verified, units=UNITS - 1)
    assert maps() == before
    load(verified, units=UNITS).close()


# ---- readiness -------------------------------------------------------------------------------------------------------


def test_the_first_buckets_are_ready_and_the_others_before_their_first_run(verified: VerifiedCore) -> None:
    with load(verified, ready="first") as program:
        assert [program.is_ready("step", rows=rows) for rows in (1, 2, 4)] == [True, False, True]
        run_once(program, 2)
        assert program.is_ready("step", rows=2)
    with load(verified, ready=[("step", {"rows": 2})]) as program:
        assert [program.is_ready("step", rows=rows) for rows in (1, 2, 4)] == [False, True, False]
    with load(verified) as program:
        assert all(program.is_ready("step", rows=rows) for rows in (1, 2, 4))


@pytest.mark.parametrize("how", ["write", "view", "write_state", "state", "launch"])
def test_a_self_test_puts_back_what_there_is_and_zeros_where_nothing_was(verified: VerifiedCore, how: str) -> None:
    """Before anybody wrote or launched there is nothing to put back."""
    shape = {"rows": 1}
    with load(verified, ready=()) as program:
        size = program.buffer("step", shape, "x").size
        program.prepare("step", **shape)
        assert program.read("step", shape, "x") == bytes(size)
        assert not any(program.read_state("cache"))
        if how == "write":
            program.write("step", shape, "x", bytes([7]) * size)
        elif how == "view":
            with program.view("step", shape, "x") as view:
                view[:] = bytes([7]) * size
        elif how == "write_state":
            program.write_state("cache", 5, b"seven")
        elif how == "state":
            with program.state("cache") as cache:
                cache[5:10] = b"seven"
        else:
            run_once(program, 1)
        before = [program.read("step", shape, "x"), program.read_state("cache")]
        assert any(map(any, before))
        assert program.self_test(0)
        assert [program.read("step", shape, "x"), program.read_state("cache")] == before


@pytest.mark.parametrize("ready", ["some", [("step", {"rows": 3})], [("leap", {"rows": 1})]])
def test_what_cannot_be_made_ready_is_a_usage_error(verified: VerifiedCore, ready: Ready) -> None:
    before = maps()
    with pytest.raises(UsageError):
        load(verified, ready=ready)
    assert maps() == before


@pytest.mark.parametrize("number", [-1, 1 << 40])
@pytest.mark.parametrize("name", ["workers", "index", "threads"])
def test_a_number_that_counts_nothing_is_a_usage_error(verified: VerifiedCore, name: str, number: int) -> None:
    with pytest.raises(UsageError) as caught:
        load(verified, **{name: number})  # type: ignore[arg-type]
    assert name in caught.value.found
    load(verified, **{name: 0}).close()  # type: ignore[arg-type]


def test_a_core_that_was_closed_is_not_loaded(verified: VerifiedCore) -> None:
    verified.close()
    with pytest.raises(UsageError) as caught:
        load(verified)
    assert "closed" in caught.value.found


def test_checks_are_left_out_by_no_caller_in_the_package() -> None:
    package = Path(__file__).parents[2] / "src" / "heliograph"
    loads = [
        (path.name, keyword.value)
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("load", "assemble", "Staging")
        for keyword in node.keywords
        if keyword.arg == "check"
    ]
    assert [(name, ast.unparse(value)) for name, value in loads] == [("load.py", "check")] * 2  # load hands it on


def test_errors_of_a_load_tell_four_things(verified: VerifiedCore) -> None:
    with pytest.raises(HeliographError) as caught:
        load(verified, memory=1 << 20)
    error = caught.value
    assert all((error.doing, error.found, error.required, error.hint))
