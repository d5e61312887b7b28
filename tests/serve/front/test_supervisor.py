"""The worker's life: start, order of frames, death, silence, restart, stop. Every wait ends."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace
from scripted_worker import Line, Script, ScriptedWorker, Told

from heliograph.errors import (
    HeliographError,
    OutOfMemoryError,
    ProtocolError,
    SelfTestError,
    TamperedError,
    WorkerError,
)
from heliograph.serve.frames import Ended, Failed, Hello, Launched, Loaded, Ready, Settings, Start, encode
from heliograph.serve.front.journal import End, Journal, Row, Work
from heliograph.serve.front.supervisor import State, Supervisor
from heliograph.serve.front.text_stream import StopString, TextStream
from heliograph.serve.limits import Limits

PATIENCE = 20.0
SHORT = Limits(start=0.3, silence=0.3, stop=0.3, restarts=2, restart_window=60.0)


class Letters:
    def add(self, token: int) -> str:
        return chr(ord("a") + token)

    def end(self) -> str:
        return ""


@dataclass
class Watch:
    """An Observer that keeps what it was told."""

    phases: list[str] = field(default_factory=list)
    loads: list[Loaded] = field(default_factory=list)
    readies: int = 0
    kept: list[int] = field(default_factory=list)
    ends: list[Ended] = field(default_factory=list)
    restarts: list[HeliographError] = field(default_factory=list)

    def phase(self, name: str, nanoseconds: int) -> None:
        self.phases.append(name)

    def loaded(self, loaded: Loaded) -> None:
        self.loads.append(loaded)

    def ready(self) -> None:
        self.readies += 1

    def launched(self, launched: Launched, kept: int) -> None:
        self.kept.append(kept)

    def ended(self, ended: Ended) -> None:
        self.ends.append(ended)

    def restarting(self, error: HeliographError) -> None:
        self.restarts.append(error)


class Play:
    """A supervisor that runs, with what surrounds it."""

    def __init__(self, script: Script, limits: Limits, digest: str = "d" * 64) -> None:
        self.told, self.watch, self.journal = Told(), Watch(), Journal()

        async def front_digest() -> str:
            return digest

        self.supervisor = Supervisor(
            lambda: ScriptedWorker(script, self.told), front_digest(), self.journal,
            self.watch, limits,
        )  # fmt: skip
        self.changed = asyncio.Event()
        self.running = asyncio.ensure_future(self.supervisor.run())

    def submit(self, rows: int = 1, stops: tuple[str, ...] = ()) -> tuple[Row, ...]:
        work = Work((1, 2), tuple(range(rows)), 100, 0, (), tuple(map(StopString.of, stops)), Settings())
        opened = self.journal.open(
            work, lambda: TextStream(Letters(), work.stop_strings), lambda kept: self.changed.set()
        )
        self.supervisor.submit(opened)
        return opened

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.002)

    async def ready(self) -> None:
        await self.until(lambda: self.supervisor.state is State.READY)

    async def readies(self, count: int) -> None:
        await self.until(lambda: self.watch.readies == count)

    async def failure(self) -> HeliographError:
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(HeliographError) as caught:
                await self.running
        return caught.value

    async def stop(self) -> None:
        await self.supervisor.stop()
        async with asyncio.timeout(PATIENCE):
            await self.running


def script(**more: Any) -> Script:
    return Script(line=lambda submit, place: Line([0, 1, 2]), **more)


def play(
    body: Callable[[Play], Awaitable[None]], given: Script, limits: Limits = SHORT, digest: str = "d" * 64
) -> None:  # fmt: skip
    async def run() -> None:
        played = Play(given, limits, digest)
        try:
            await body(played)
        finally:
            played.running.cancel()
            await asyncio.wait([played.running])

    asyncio.run(run())


# ---- a good life ---------------------------------------------------------------------------------------------------
def test_rows_get_their_tokens_and_the_worker_ends_when_told() -> None:
    async def body(p: Play) -> None:
        await p.ready()
        rows = p.submit(2)
        await p.until(lambda: all(row.end for row in rows))
        assert [row.tokens for row in rows] == [[0, 1, 2], [0, 1, 2]]
        assert (p.watch.phases, p.watch.restarts) == (["map", "self-tests"], [])
        assert (len(p.watch.loads), p.watch.readies) == (1, 1)
        assert sum(p.watch.kept) == 6
        await p.stop()
        assert p.supervisor.state is State.ENDED
        assert p.told.cancelled == []

    play(body, script())


def test_a_row_that_a_stop_string_ended_is_cancelled_in_the_worker() -> None:
    async def body(p: Play) -> None:
        await p.ready()
        (row,) = p.submit(stops=("ab",))
        await p.until(lambda: p.told.cancelled == [row.number])
        assert (row.end, row.tokens) == (End.STOP, [0, 1])

    play(body, Script(line=lambda submit, place: Line([0, 1] + [3] * 1000), interval=0.005))


def test_a_cancelled_row_ends_at_once_here_and_there() -> None:
    async def body(p: Play) -> None:
        await p.ready()
        rows = p.submit(3)
        p.supervisor.cancel(rows[:2])
        p.supervisor.cancel(rows[:2])
        assert [row.end for row in rows] == [End.CANCELLED, End.CANCELLED, None]
        await p.until(lambda: p.told.under_way == {rows[2].number})
        assert p.told.cancelled == [row.number for row in rows[:2]]

    play(body, Script(line=lambda submit, place: Line([0] * 1000), interval=0.01))


def test_a_row_that_the_worker_refuses_ends_with_its_words() -> None:
    async def body(p: Play) -> None:
        await p.ready()
        (row,) = p.submit()
        await p.until(lambda: row.end is not None)
        assert (row.end, row.message) == (End.REFUSED, "too long")

    play(body, Script(line=lambda submit, place: Line([], "refused", "too long")))


def test_a_row_that_the_worker_drops_of_its_own_accord_has_failed() -> None:
    async def body(p: Play) -> None:
        await p.ready()
        (row,) = p.submit()
        await p.until(lambda: row.end is not None)
        assert row.end is End.FAILED

    play(body, Script(line=lambda submit, place: Line([], "cancelled")))


def test_a_worker_that_has_nothing_to_do_may_be_silent() -> None:
    async def body(p: Play) -> None:
        await p.ready()
        rows = p.submit()
        await p.until(lambda: rows[0].end is not None)
        (gone,) = p.submit()
        p.supervisor.cancel([gone])
        await asyncio.sleep(3 * SHORT.silence)
        assert (p.supervisor.state, p.watch.restarts) == (State.READY, [])

    play(body, script(interval=0.01))


# ---- a start that fails ends the server ----------------------------------------------------------------------------
def test_the_error_that_the_worker_names_is_raised_as_its_kind() -> None:
    async def body(p: Play) -> None:
        error = await p.failure()
        assert type(error) is OutOfMemoryError
        assert (error.doing, error.found, error.required, error.hint) == ("d", "f", "r", "h")
        assert len(p.told.workers) == 1

    play(body, script(fails=Failed("OutOfMemoryError", "d", "f", "r", "h")))


@pytest.mark.parametrize("name", ["SystemExit", "annotations", "no such", "HeliographError.x"])
def test_an_error_of_a_name_that_is_not_ours_is_a_worker_error(name: str) -> None:
    async def body(p: Play) -> None:
        assert type(await p.failure()) is WorkerError

    play(body, script(fails=Failed(name, "d", "f", "r", "h")))


def test_another_core_in_the_worker_is_refused() -> None:
    async def body(p: Play) -> None:
        error = await p.failure()
        assert type(error) is TamperedError
        assert ("d" * 64 in error.found, "e" * 64 in error.required) == (True, True)

    play(body, script(), digest="e" * 64)


def test_another_protocol_is_one_clear_error() -> None:
    async def body(p: Play) -> None:
        error = await p.failure()
        assert (type(error), error.found) == (ProtocolError, "protocol 999")

    play(body, script(protocol=999))


def test_how_a_worker_died_while_it_started_is_told() -> None:
    async def body(p: Play) -> None:
        await p.until(lambda: len(p.told.starts) == 1)
        p.told.workers[0].kill()
        error = await p.failure()
        assert (type(error), "SIGKILL" in error.found) == (WorkerError, True)

    play(body, script(start_delay=60))


class Deaf:
    """A worker that ends by a fault before it has read anything, which resets its connection."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.sendall(encode(Start(1, "core")))
        theirs.close()

    def kill(self) -> None:
        """It has ended."""

    async def ended(self) -> int:
        return -signal.SIGSEGV


def test_how_a_worker_died_that_had_read_nothing_is_told() -> None:
    async def digest() -> str:
        return "d" * 64

    async def run() -> None:
        await Supervisor(Deaf, digest(), Journal(), Watch(), SHORT).run()

    with pytest.raises(WorkerError) as caught:
        asyncio.run(run())
    assert "SIGSEGV" in caught.value.found


def test_a_start_that_takes_too_long_is_ended() -> None:
    async def body(p: Play) -> None:
        assert type(await p.failure()) is WorkerError
        assert await p.told.workers[0].ended() == -9

    play(body, script(start_delay=60))


def test_a_start_within_the_limit_is_not() -> None:
    async def body(p: Play) -> None:
        await p.ready()

    play(body, script(start_delay=0.05))


# ---- between loaded and ready --------------------------------------------------------------------------------------
FAILS = Failed("SelfTestError", "testing decode/8", "another result", "the recorded one", "none")


def test_rows_are_taken_before_all_self_tests_have_passed() -> None:
    async def body(p: Play) -> None:
        await p.until(lambda: p.supervisor.state is State.TESTING)
        assert p.supervisor.settled.is_set()
        (row,) = p.submit()
        await p.until(lambda: row.end is not None)
        assert (row.tokens, p.supervisor.state, p.watch.readies) == ([0, 1, 2], State.TESTING, 0)
        given.testing.set()
        await p.ready()
        assert (p.watch.readies, p.watch.phases) == (1, ["map", "self-tests"])

    given = script(testing=asyncio.Event())
    play(body, given, limits=replace(SHORT, start=PATIENCE))


def test_self_tests_go_on_once_early_clients_have_been_heard_and_at_once_after_a_restart() -> None:
    async def body(p: Play) -> None:
        began = asyncio.get_running_loop().time()
        await p.until(lambda: p.supervisor.state is State.READY)
        assert "Proceed" not in p.told.heard
        await p.until(lambda: p.told.heard == ["Start", "Proceed"])
        assert asyncio.get_running_loop().time() - began > 0.2
        p.told.workers[-1].kill()
        await p.until(lambda: p.told.heard == ["Start", "Proceed"] * 2)

    play(body, script(), limits=replace(SHORT, early=0.3))


@pytest.mark.parametrize("rows", [0, 1])
def test_a_self_test_that_fails_at_the_first_start_ends_everything(rows: int) -> None:
    """B6, also when rows are under way already: they end."""

    async def body(p: Play) -> None:
        await p.until(lambda: p.supervisor.state is State.TESTING)
        opened = p.submit(rows) if rows else ()
        given.testing.set()
        assert isinstance(await p.failure(), SelfTestError)
        assert (p.watch.readies, p.watch.restarts, p.supervisor.state) == (0, [], State.ENDED)
        assert [row.end for row in opened] == [End.FAILED] * rows

    given = Script(lambda submit, place: Line([0] * 1000), interval=0.01, testing=asyncio.Event(), fails_tests=FAILS)
    play(body, given, limits=replace(SHORT, start=PATIENCE))


def test_a_self_test_that_fails_after_a_restart_is_a_death() -> None:
    async def body(p: Play) -> None:
        await p.ready()
        given.fails_tests = FAILS
        p.told.workers[-1].kill()
        await p.until(lambda: len(p.watch.restarts) == 2)
        assert isinstance(p.watch.restarts[1], SelfTestError)
        await p.readies(2)

    given = script()
    play(body, given)


def test_a_worker_that_never_becomes_ready_ends_within_the_limit() -> None:
    async def body(p: Play) -> None:
        assert isinstance(await p.failure(), WorkerError)
        assert len(p.watch.loads) == 1

    play(body, script(testing=asyncio.Event()))


# ---- death after ready ---------------------------------------------------------------------------------------------
def test_every_row_ends_when_the_worker_dies_and_another_one_answers() -> None:
    given = script(dies_after=2, interval=0.005)

    async def body(p: Play) -> None:
        await p.ready()
        rows = p.submit(3)
        await p.until(lambda: all(row.end for row in rows))
        assert {row.end for row in rows} == {End.FAILED}
        given.dies_after = -1
        await p.until(lambda: len(p.told.workers) == 2)
        await p.ready()
        (row,) = p.submit()
        await p.until(lambda: row.end is not None)
        assert (row.end, row.tokens) == (End.STOP, [0, 1, 2])
        (told,) = p.watch.restarts  # of the frame that broke off nobody needs to know, but what ended the worker
        assert isinstance(told, WorkerError)
        assert "SIGSEGV" in told.found

    play(body, given)


def test_rows_submitted_while_no_worker_runs_fail_at_once() -> None:
    given = script(start_delay=0.0)

    async def body(p: Play) -> None:
        await p.ready()
        given.start_delay = 0.2
        p.told.workers[0].kill()
        await p.until(lambda: p.supervisor.state is State.DOWN)
        (row,) = p.submit()
        assert row.end is End.FAILED
        await p.ready()

    play(body, given)


def test_a_worker_that_says_nothing_while_rows_are_under_way_is_killed() -> None:
    given = script(hangs_after=1, interval=0.005)

    async def body(p: Play) -> None:
        await p.ready()
        (row,) = p.submit()
        await p.until(lambda: row.end is not None)
        assert row.end is End.FAILED
        assert type(p.watch.restarts[0]) is WorkerError
        assert await p.told.workers[0].ended() == -9

    play(body, given)


def test_a_worker_that_takes_nothing_is_killed_though_every_client_has_left() -> None:
    async def body(p: Play) -> None:
        await p.ready()
        given.deaf = True
        p.supervisor.cancel(p.submit())
        await p.until(lambda: len(p.watch.restarts) == 1)
        assert await p.told.workers[0].ended() == -9

    given = script()
    play(body, given)


def test_a_worker_that_takes_nothing_is_killed_though_it_has_said_all_that_is_waited_for() -> None:
    async def body(p: Play) -> None:
        await p.ready()
        (row,) = p.submit()
        await p.until(lambda: bool(row.tokens))
        given.deaf = True
        while row.end is None:
            while not p.supervisor.full:
                p.supervisor.cancel(p.submit())
            await asyncio.sleep(0.002)
        await p.until(lambda: len(p.watch.restarts) == 1)
        assert await p.told.workers[0].ended() == -9

    given = script(interval=0.05)
    play(body, given, replace(SHORT, unread=1000))


def test_cancelling_others_does_not_make_a_hanging_worker_live_longer() -> None:
    async def body(p: Play) -> None:
        await p.ready()
        (row,) = p.submit()
        async with asyncio.timeout(PATIENCE):
            while row.end is None:
                p.supervisor.cancel(p.submit())
                await asyncio.sleep(SHORT.silence / 10)
        assert row.end is End.FAILED

    play(body, script(hangs_after=0))


def test_a_worker_that_ends_too_often_ends_the_server() -> None:
    async def body(p: Play) -> None:
        for count in range(SHORT.restarts + 1):
            await p.readies(count + 1)
            p.told.workers[-1].kill()
        assert type(await p.failure()) is WorkerError
        assert len(p.watch.restarts) == SHORT.restarts
        assert p.supervisor.state is State.ENDED

    play(body, script())


def test_deaths_long_ago_do_not_count() -> None:
    async def body(p: Play) -> None:
        for count in range(SHORT.restarts + 3):
            await p.readies(count + 1)
            p.told.workers[-1].kill()
            await asyncio.sleep(0.06)
        await p.ready()

    play(body, script(), replace(SHORT, restart_window=0.05))


@pytest.mark.parametrize(
    "broken",
    [
        encode(Loaded(1, 1, 1, 1)),
        encode(Ready()),
        encode(Hello(1, "d" * 64, "again")),
        b"\x00\x00\x00\x00",
        b"\xff\xff\xff\xff",
        b"\x02\x00\x00\x00hi",
    ],
)
def test_what_is_not_in_order_after_ready_is_a_death(broken: bytes) -> None:
    async def body(p: Play) -> None:
        await p.until(lambda: len(p.watch.restarts) == 1)
        assert type(p.watch.restarts[0]) is ProtocolError
        await p.until(lambda: len(p.told.workers) == 2)
        await p.ready()

    play(body, script(broken=broken))


# ---- the end -------------------------------------------------------------------------------------------------------
def test_a_worker_that_does_not_end_when_told_is_killed() -> None:
    async def body(p: Play) -> None:
        await p.ready()
        await p.stop()
        assert await p.told.workers[0].ended() == -9

    play(body, script(ignores_stop=True))


def test_a_worker_that_loads_is_not_waited_for_when_the_server_ends() -> None:
    """It reads nothing meanwhile, and nobody waits for an answer of it."""

    async def body(p: Play) -> None:
        await p.until(lambda: len(p.told.starts) == 1)
        await p.stop()

    play(body, script(start_delay=60, ignores_stop=True), replace(SHORT, start=600, stop=600))
