"""The states of a program, and which calls each of them allows."""

from __future__ import annotations

import enum
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from heliograph.errors import UsageError


class State(enum.Enum):
    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    UNLOADING = "unloading"


class Use(enum.Enum):
    """What a call does with the program."""

    LAUNCH = "launching"  # runs graphs, or changes what they will read
    LOOK = "reading memory"  # also allowed after a failure, to find out what happened
    TEST = "running self-tests"


ALLOWED: Mapping[Use, frozenset[State]] = {
    Use.LAUNCH: frozenset({State.READY}),
    Use.LOOK: frozenset({State.READY, State.FAILED}),
    Use.TEST: frozenset({State.LOADING, State.READY}),
}
_NEXT: Mapping[State, str] = {
    State.UNLOADED: "load the core again",
    State.LOADING: "wait until load returns",
    State.READY: "this is a fault in Heliograph: please report it",
    State.FAILED: "close this program and load the core again; the first error says what happened",
    State.UNLOADING: "load the core again once close has returned",
}


class Gate:
    """Counts the calls inside, so that closing waits for them and none begins afterwards. Safe from any thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._state = State.LOADING
        self._inside = 0
        self._changed = threading.Condition(threading.Lock())

    @property
    def state(self) -> State:
        return self._state

    @contextmanager
    def call(self, use: Use) -> Iterator[None]:
        """Holds the program open for one call; UsageError if its state does not allow the use."""
        with self._changed:
            if self._state not in ALLOWED[use]:
                raise UsageError(
                    f"{use.value} of {self._name}",
                    found=f"the program is {self._state.value}",
                    required=" or ".join(sorted(state.value for state in ALLOWED[use])),
                    hint=_NEXT[self._state],
                )
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def ready(self) -> None:
        with self._changed:
            self._state = State.READY

    def fail(self) -> None:
        """Nothing launches any more. A program that is being closed stays so."""
        with self._changed:
            if self._state in (State.READY, State.LOADING):
                self._state = State.FAILED

    def begin_close(self) -> State | None:
        """Refuses new calls and waits for those inside. The state that was left, or None if it is closed already.

        Of two threads that close at once the second waits for the first.
        """
        with self._changed:
            while self._state is State.UNLOADING:
                self._changed.wait()
            if self._state is State.UNLOADED:
                return None
            before, self._state = self._state, State.UNLOADING
            while self._inside:
                self._changed.wait()
            return before

    def end_close(self, state: State) -> None:
        """UNLOADED once everything is given back; the state before if something stood in the way."""
        with self._changed:
            self._state = state
            self._changed.notify_all()
