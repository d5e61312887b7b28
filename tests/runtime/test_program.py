"""The program's calls: in every state, with wrong names and sizes, from many threads."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from heliograph.core.manifest import Case
from heliograph.core.verify import VerifiedCore
from heliograph.errors import DriverError, SelfTestError, UsageError
from heliograph.runtime.gate import State
from heliograph.runtime.load import load
from heliograph.runtime.loaded import Loaded
from heliograph.runtime.program import Program
from heliograph.runtime.selftest import self_test
from study import COLS, UNIT_BYTES, UNITS

ONE = {"rows": 1}
X = struct.pack(f"<{COLS}f", *range(COLS))
CALLS: dict[str, Callable[[Program], object]] = {
    "view": lambda program: program.view("step", ONE, "out").release(),
    "read": lambda program: program.read("step", ONE, "out"),
    "write": lambda program: program.write("step", ONE, "x", X),
    "state": lambda program: program.state("cache").release(),
    "run": lambda program: program.run("step", rows=1),
    "launch": lambda program: program.launch("step", rows=1),
    "drain": lambda program: program.drain(),
    "prepare": lambda program: program.prepare("step", rows=1),
    "self_test": lambda program: program.self_test(0),
    "reset": lambda program: program.reset(),
}
AFTER_FAILURE = {"view", "read", "state", "drain"}


@pytest.fixture
def program(verified: VerifiedCore) -> Iterator[Program]:
    with load(verified, workers=2, ready="first") as loaded:
        yield loaded


def step(program: Program, x: bytes, *ids: int) -> bytes:
    shape = {"rows": len(ids)}
    program.write("step", shape, "x", x * len(ids))
    program.write("step", shape, "ids", struct.pack(f"<{len(ids)}i", *ids))
    program.run("step", **shape)
    return program.read("step", shape, "out")


@pytest.mark.parametrize("call", CALLS)
def test_every_call_works_when_ready(program: Program, call: str) -> None:
    assert program.status is State.READY
    CALLS[call](program)


@pytest.mark.parametrize("call", CALLS)
def test_every_call_on_a_closed_program_is_a_usage_error(program: Program, call: str) -> None:
    program.close()
    program.close()
    assert program.status is State.UNLOADED
    with pytest.raises(UsageError) as caught:
        CALLS[call](program)
    assert "unloaded" in caught.value.found


@pytest.mark.parametrize("call", CALLS)
def test_after_a_device_error_memory_can_be_read_and_nothing_runs(
    program: Program, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def faulting(bucket: object) -> None:
        raise DriverError("launching", found="a planted error", required="none", hint="")

    with monkeypatch.context() as patch:
        patch.setattr(program._loaded, "launch", faulting)
        with pytest.raises(DriverError):
            program.run("step", rows=1)
    assert program.status is State.FAILED
    if call in AFTER_FAILURE:
        CALLS[call](program)
    else:
        with pytest.raises(UsageError) as caught:
            CALLS[call](program)
        assert "failed" in caught.value.found


@pytest.mark.parametrize("number", range(5))
def test_calls_from_many_threads_beside_a_close_run_or_are_refused(verified: VerifiedCore, number: int) -> None:
    program = load(verified, workers=2, ready="first")
    finished: list[str] = []
    ended: list[type[BaseException]] = []

    def loop(call: str) -> None:
        try:
            while True:
                CALLS[call](program)
                finished.append(call)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is compared below
            ended.append(type(error))

    threads = [threading.Thread(target=loop, args=(call,)) for call in CALLS if call not in ("view", "state")]
    for thread in threads:
        thread.start()
    while len(finished) < 20:
        time.sleep(0.001)
    program.close()
    for thread in threads:
        thread.join(30)
    assert ended == [UsageError] * len(threads)
    assert program.status is State.UNLOADED


def test_what_another_thread_writes_during_a_self_test_is_kept(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A self-test puts back what it disturbed: not what was written after it had looked."""
    cache = bytes(range(256)) * (len(program.read_state("cache")) // 256)
    writers = [
        threading.Thread(target=lambda: program.write("step", ONE, "x", X)),
        threading.Thread(target=lambda: program.write_state("cache", 0, cache)),
    ]

    def tested(loaded: Loaded, graph: int, cases: Sequence[Case]) -> None:
        self_test(loaded, graph, cases)
        for writer in writers:
            writer.start()
            writer.join(0.2)

    monkeypatch.setattr("heliograph.runtime.program.self_test", tested)
    assert program.self_test(0)
    for writer in writers:
        writer.join(30)
    assert program.read("step", ONE, "x") == X
    assert program.read_state("cache") == cache


@pytest.mark.parametrize("held", ["field", "state", "part of a state"])
def test_close_is_refused_while_a_view_is_held_and_nothing_is_lost(program: Program, held: str) -> None:
    expected = step(program, X, 1)
    program.reset()
    view = program.view("step", ONE, "x") if held == "field" else program.state("cache")
    if held == "part of a state":
        view = view[UNIT_BYTES : 2 * UNIT_BYTES].cast("f")
    with pytest.raises(UsageError):
        program.close()
    assert program.status is State.READY
    assert step(program, X, 1) == expected
    view.release()
    del view
    program.close()
    assert program.status is State.UNLOADED


# ---- names, shapes, sizes --------------------------------------------------------------------------------------------


def test_buckets_are_found_by_what_they_must_hold(program: Program) -> None:
    assert [program.bucket("step", rows=rows)["rows"] for rows in (1, 2, 3, 4)] == [1, 2, 4, 4]
    assert program.bucket("step") == {"rows": 1}
    for wrong, required in ({"rows": 5}, "at most {rows: 4}"), ({"rows": 1, "columns": 1}, "dimensions: rows"):
        with pytest.raises(UsageError) as caught:
            program.bucket("step", **wrong)
        assert caught.value.required == required


def test_entries_and_fields_describe_themselves(program: Program) -> None:
    assert list(program.entries) == ["step"]
    buffer = program.buffer("step", {"rows": 4}, "out")
    assert (buffer.dtype, buffer.shape, buffer.size) == ("f32", (4, COLS), 4 * COLS * 4)


@pytest.mark.parametrize(
    "call",
    [
        lambda program: program.run("leap", rows=1),
        lambda program: program.run("step", rows=3),
        lambda program: program.run("step"),
        lambda program: program.run("step", rows=1, columns=2),
        lambda program: program.read("step", ONE, "nothing"),
        lambda program: program.read("step", {"rows": 3}, "out"),
        lambda program: program.write("step", ONE, "x", X[:-1]),
        lambda program: program.write("step", ONE, "x", X + b"\0"),
        lambda program: program.write("step", ONE, "out", X),
        lambda program: program.state("nothing"),
        lambda program: program.self_test(-1),
        lambda program: program.self_test(3),
        lambda program: program.self_test("step/1"),  # type: ignore[arg-type]
    ],
)
def test_a_call_that_cannot_be_meant_is_a_usage_error(program: Program, call: Callable[[Program], object]) -> None:
    with pytest.raises(UsageError) as caught:
        call(program)
    assert caught.value.found
    assert caught.value.required
    assert program.status is State.READY


def test_views_are_the_memory_itself(program: Program) -> None:
    with program.view("step", ONE, "x") as x, program.view("step", ONE, "ids") as ids:
        x[:] = X
        ids[:] = struct.pack("<i", 2)
    program.run("step", **ONE)
    with program.view("step", ONE, "out") as out:
        assert bytes(out) == program.read("step", ONE, "out") != bytes(len(out))


# ---- what survives, and what does not --------------------------------------------------------------------------------


def test_state_survives_between_runs_and_reset_clears_it(program: Program) -> None:
    first = step(program, X, 1)
    assert step(program, X, 1) != first
    program.reset()
    with program.state("cache") as cache, program.state("total") as total:
        assert not any(cache)
        assert not any(total)
    assert step(program, X, 1) == first


def test_after_a_load_state_and_inputs_are_zero(program: Program) -> None:
    with program.state("cache") as cache, program.state("total") as total:
        assert not any(cache)
        assert not any(total)
    assert not any(program.read("step", ONE, "x"))


@pytest.mark.parametrize("how", ["first run", "prepare", "self_test"])
def test_a_self_test_in_between_leaves_state_and_inputs_as_they_were(program: Program, how: str) -> None:
    """rows=2 is not ready; its self-test uses the same units, totals and fields as the requests under way."""
    before = step(program, X, 1)
    shape = {"rows": 2}
    program.write("step", shape, "x", X * 2)
    program.write("step", shape, "ids", struct.pack("<2i", 1, -1))
    with program.state("cache") as cache, program.state("total") as total:
        kept = bytes(cache), bytes(total)
    if how == "prepare":
        program.prepare("step", **shape)
    elif how == "self_test":
        assert program.self_test(1)
    if how != "first run":
        with program.state("cache") as cache, program.state("total") as total:
            assert (bytes(cache), bytes(total)) == kept
    program.run("step", **shape)
    out = program.read("step", shape, "out")
    program.reset()
    assert step(program, X, 1) == before
    assert step(program, X, 1) == out[: COLS * 4]


def test_launches_run_in_order_and_drain_waits_for_all(program: Program) -> None:
    program.write("step", ONE, "x", X)
    program.write("step", ONE, "ids", struct.pack("<i", 1))
    for _ in range(50):
        program.launch("step", **ONE)
    program.drain()
    many = program.read("step", ONE, "sum")
    program.reset()
    for _ in range(49):
        step(program, X, 1)
    step(program, X, 1)
    assert program.read("step", ONE, "sum") == many


def test_a_graph_that_fails_its_self_test_does_not_run_until_it_passes(program: Program) -> None:
    memory = program._loaded.memory
    expected = step(program, X, 1)
    program.reset()
    with pytest.raises(UsageError):
        memory.write("state", 1 << 50, b"x")
    weights = memory._reservations["weights"]
    size = memory.mapped("weights")
    old = memory.read("weights", 3, 1)
    weights.protect(0, size, writable=True)
    memory.write("weights", 3, bytes([old[0] ^ 0x40]))
    assert program.self_test(0) is False
    with pytest.raises(SelfTestError):
        program.run("step", rows=1)
    memory.write("weights", 3, old)
    weights.protect(0, size, writable=False)
    assert step(program, X, 1) == expected


def test_weights_and_constants_cannot_be_written(program: Program) -> None:
    for role in ("weights", "constants"):
        with pytest.raises(UsageError):
            program._loaded.memory.write(role, 0, b"\0")
        with program._loaded.memory.view(role, 0, 16) as view:
            assert view.readonly


def test_units_in_use_by_self_tests_are_no_more_than_were_mapped(program: Program) -> None:
    assert program.units >= UNITS
