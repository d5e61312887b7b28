"""A program's states: what each allows, and that closing waits for the calls inside."""

from __future__ import annotations

import threading
import time

import pytest

from heliograph.errors import UsageError
from heliograph.runtime.gate import ALLOWED, Gate, State, Use


def gate_in(state: State) -> Gate:
    gate = Gate("core")
    if state is not State.LOADING:
        gate.ready()
    if state is State.FAILED:
        gate.fail()
    if state in (State.UNLOADING, State.UNLOADED):
        gate.begin_close()
    if state is State.UNLOADED:
        gate.end_close(State.UNLOADED)
    assert gate.state is state
    return gate


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("use", Use)
def test_each_use_in_each_state_is_allowed_or_a_usage_error(state: State, use: Use) -> None:
    gate = gate_in(state)
    if state in ALLOWED[use]:
        with gate.call(use):
            pass
    else:
        with pytest.raises(UsageError) as caught, gate.call(use):
            pass
        assert state.value in caught.value.found


def test_closing_waits_for_the_call_inside_and_lets_no_other_in() -> None:
    gate = gate_in(State.READY)
    entered, leave, order = threading.Event(), threading.Event(), []

    def call() -> None:
        with gate.call(Use.LAUNCH):
            entered.set()
            leave.wait(10)
            order.append("call ended")

    caller = threading.Thread(target=call)
    caller.start()
    entered.wait(10)
    closer = threading.Thread(target=lambda: (gate.begin_close(), order.append("closed")))
    closer.start()
    while gate.state is not State.UNLOADING:
        time.sleep(0.001)
    with pytest.raises(UsageError), gate.call(Use.LAUNCH):
        pass
    leave.set()
    closer.join(10)
    caller.join(10)
    assert order == ["call ended", "closed"]


def test_a_second_close_waits_for_the_first_and_does_nothing() -> None:
    gate = gate_in(State.READY)
    assert gate.begin_close() is State.READY
    second: list[State | None] = []
    other = threading.Thread(target=lambda: second.append(gate.begin_close()))
    other.start()
    time.sleep(0.01)
    assert second == []
    gate.end_close(State.UNLOADED)
    other.join(10)
    assert second == [None]


def test_a_close_that_did_not_succeed_leaves_the_state_before() -> None:
    gate = gate_in(State.READY)
    before = gate.begin_close()
    assert before is not None
    gate.end_close(before)
    with gate.call(Use.LAUNCH):
        pass


def test_a_failure_while_closing_does_not_reopen() -> None:
    gate = gate_in(State.UNLOADING)
    gate.fail()
    assert gate.state is State.UNLOADING
