"""What a graph's nodes depend on, and the launches that use it; let go of only when no launch is left.

Apart from the Graph, so that a Graph's finaliser can hold it: owners outlive the Graph until its replays are over.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from heliograph._native import Executable, Template
from heliograph.device.pool import Pool
from heliograph.errors import DeviceFaultError, GraphStateError


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """An executable and the capture that its template came from (a number that is unique in the process)."""

    executable: Executable
    capture: int


class Holdings:
    """The pools, owners, template and executable of one graph. Any thread may use it.

    Owners and pools are dropped last, and only when every launch has finished: their finalisers may free the memory
    that the nodes point at.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.owners: tuple[object, ...] = ()
        self.pools: tuple[Pool, ...] = ()
        self.template: Template | None = None
        self.instance: Instance | None = None
        self._leases = 0
        self._launching = 0
        self._closed = False
        self._changed = threading.Condition()
        self._releasing = threading.RLock()  # an owner's finaliser may come back here

    def bind(self, pools: tuple[Pool, ...], owners: tuple[object, ...]) -> None:
        self.pools = pools  # holds: R4 tests/device/test_graph.py::test_pools_live_until_reset
        self.owners = owners  # holds: R4 tests/device/test_graph.py::test_owners_live_until_reset
        self._closed = False

    def enter(self) -> Instance:
        """Begins a launch. Until ``leave``, nothing is released."""
        with self._changed:
            instance = self._usable()
            self._launching += 1
            return instance

    def leave(self) -> None:
        with self._changed:
            self._launching -= 1
            self._changed.notify_all()

    def lend(self) -> Instance:
        """Begins a lease: a native replayer launches by itself until ``give_back``."""
        with self._changed:
            instance = self._usable()
            self._leases += 1
            return instance

    def give_back(self) -> None:
        with self._changed:
            self._leases -= 1

    def _usable(self) -> Instance:
        if self._closed or self.instance is None:
            raise GraphStateError(
                f"launching graph {self.name!r}",
                found="a graph that is being released" if self._closed else "a graph without an executable",
                required="an instantiated graph",
                hint='record it with retain="executable", or call instantiate()',
            )
        return self.instance

    def drain(self) -> None:
        """Returns when no launch of the executable is in flight."""
        if self.instance is not None:
            self.instance.executable.drain()  # holds: R4 tests/device/test_graph.py::test_exit_drains

    def release(self) -> None:
        """Refuses new launches, drains, and lets go of everything.

        Raises and still holds everything if a native replayer has a lease or the drain fails. After a device fault
        nothing runs any more: lets go, then raises the fault.
        """
        with self._releasing, self._shut():
            fault: DeviceFaultError | None = None
            try:
                self._close_executable()  # holds: R4 tests/device/test_graph.py::test_reset_drains
            except DeviceFaultError as error:
                fault = error
            if self.template is not None:
                self.template.close()
            self.instance = self.template = None
            self.owners = ()
            self.pools = ()
        if fault is not None:
            raise fault

    def _close_executable(self) -> None:
        """Drains it first. It may be held by others too, so letting go of it is not enough."""
        if self.instance is not None:
            self.instance.executable.close()

    def stop(self) -> None:
        """Refuses launches from now on, and drains. For interpreter exit."""
        self._refuse_launches()
        self.drain()

    def _refuse_launches(self) -> None:
        with self._changed:
            self._closed = True  # holds: R4 tests/device/test_graph.py::test_no_launch_begins_during_a_reset
            self._changed.wait_for(self._quiet)  # holds: R4 tests/device/test_graph.py::test_reset_waits_for_a_launch

    def _quiet(self) -> bool:
        return not self._launching

    @contextmanager
    def _shut(self) -> Iterator[None]:
        """No launch begins in here, none is being submitted, no lease is out; open again if what is inside fails."""
        self._refuse_launches()
        try:
            self._refuse_leases()  # holds: R4 tests/device/test_graph.py::test_lent_graph_is_not_reset
            yield
        except BaseException:
            self._closed = False
            raise

    def _refuse_leases(self) -> None:
        if self._leases:
            raise GraphStateError(
                f"releasing graph {self.name!r}",
                found=f"{self._leases} native replayers that did not drain",
                required="a drained lease from each",
                hint="stop the replayer, then call drain() of its lease; until then the graph's memory is kept",
            )
