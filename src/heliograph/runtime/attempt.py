"""What one process of the checker does: loads the draft, then runs one try, or narrows what a try found."""

from __future__ import annotations

import os
import resource
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from heliograph.core.manifest import Phase, Record
from heliograph.core.policy import Policy
from heliograph.core.report import Counter, GraphReport, Narrowed, Request
from heliograph.core.verify import verify
from heliograph.device.open import open_device
from heliograph.runtime.load import Phases, assemble
from heliograph.runtime.loaded import Loaded
from heliograph.runtime.maps import torch_loaded
from heliograph.runtime.narrow import narrow
from heliograph.runtime.patterns import Pattern
from heliograph.runtime.plan import growing_region, tested_units
from heliograph.runtime.replay import CaseRun, Replayer, TryRun, build
from heliograph.runtime.scratch import Scratch
from heliograph.runtime.selftest import distinct_cases

FAULTED = 3  # exit status of a process whose device faulted, where that does not end the process itself
PROGRESS = struct.Struct("<II")  # graph + 1 (0: none yet), case
NARROW_TESTS = 4096


class NarrowRun(Record, frozen=True, kw_only=True):
    """What a narrowing process tells its parent."""

    narrowed: tuple[Narrowed, ...]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One process's task. ``status`` and ``progress`` are descriptors shared with the parent, -1 for none."""

    draft: Path
    request: Request
    status: int
    progress: int

    @contextmanager
    def opened(self, phases: Phases) -> Iterator[Loaded]:
        """The draft, verified with the scratch key alone and loaded on a device of its kind. Constants stay writable:
        who writes shows."""
        with ExitStack() as stack:
            with phases("verify"):
                policy = Policy.only(bytes.fromhex(self.request.public_key))
                verified = stack.enter_context(verify(self.draft, policy, accept_draft=True))
            with phases("device"):
                request = self.request
                device = open_device(
                    verified.core.target.device,
                    workers=request.workers,
                    memory_limit=request.memory_limit,
                    status=self.status,
                    index=request.index,
                )
                stack.callback(device.close)
            free = device.free_bytes
            units = max(1, tested_units(verified.core)) if growing_region(verified.core) else None
            loaded = assemble(
                verified,
                device,
                phases,
                stack,
                units=units,
                memory=None if device.kind == "host" else request.memory_limit or None,
                read_only=("weights",),
                one_at_a_time=True,
            )
            if device.kind == "cuda":
                loaded.device_bytes = (free or 0) - (device.free_bytes or 0)
            phases.total()
            yield loaded

    def tell(self, graph: int, case: int) -> None:
        """Leaves word of what comes next, for the case that this process does not come back."""
        if self.progress >= 0:
            os.pwrite(self.progress, PROGRESS.pack(graph + 1, case), 0)

    def replay(self, pattern: Pattern, *, poison: bool) -> TryRun:
        """All buckets under one pattern."""
        phases = Phases()
        with self.opened(phases) as loaded:
            scratch = Scratch(loaded)
            replayer = Replayer(
                loaded, self.request.padding, lambda: scratch.fill(pattern), poison=poison, at=self.tell
            )
            with phases("replays"):
                cases, graphs = replayer.run_all(
                    leftovers=pattern is Pattern.LEFTOVERS, repeats=pattern is Pattern.ZEROS
                )
            return TryRun(
                cases=tuple(cases),
                graphs=tuple(graphs),
                written=replayer.constants.written,
                counters=_counters(loaded, graphs),
                device=loaded.device.counters(),
                phases=tuple(Phase(name=name, nanoseconds=spent) for name, spent in phases.times.items()),
                peak_host_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                peak_device_bytes=loaded.device_bytes + max((each.device_bytes for each in graphs), default=0),
                torch_loaded=torch_loaded(),
                core_digest=loaded.verified.digest,
            )

    def narrow(self, pattern: Pattern, graph: int, case: int) -> NarrowRun:
        """Which bytes of scratch change a graph's results up to a case, and what they start with."""
        with self.opened(Phases()) as loaded:
            scratch = Scratch(loaded)
            image = self._image(loaded, scratch, pattern, graph)
            _, executable = build(loaded, graph)
            loaded.catalogue.keep(graph, executable)

            place = [0, 0]
            replayer = Replayer(loaded, self.request.padding, lambda: scratch.fill_range(image, *place), at=self.tell)

            def run(begin: int, end: int) -> list[CaseRun]:
                place[:] = begin, end
                return replayer.replay(graph, cases=case + 1)

            reference = run(0, 0)
            ranges = narrow(scratch.size, lambda begin, end: run(begin, end) != reference, tests=NARROW_TESTS)
            scratch.fill(Pattern.ZEROS)
            names = ScratchNames(loaded, graph)
            found = (
                Narrowed(
                    role="scratch",
                    offset=begin,
                    size=end - begin,
                    buffer=names.at(begin),
                    content=loaded.memory.read("scratch", begin, end - begin),
                )
                for begin, end in ranges
            )
            return NarrowRun(narrowed=tuple(found))

    def _image(self, loaded: Loaded, scratch: Scratch, pattern: Pattern, graph: int) -> Pattern | bytes:
        """What scratch held when the difference was seen."""
        if pattern is not Pattern.LEFTOVERS:
            return pattern
        replayer = Replayer(loaded, self.request.padding, lambda: None, at=self.tell)
        numbers = range(len(loaded.core.graphs))
        for number in numbers:
            replayer.run_graph(number, cases=1)
        for number in reversed(numbers[graph + 1 :]):
            replayer.run_graph(number, cases=distinct_cases(loaded.core.self_tests[number]))
        return loaded.memory.read("scratch", 0, scratch.size)


class ScratchNames:
    """Names bytes of scratch after the buffers that a graph's nodes refer to; scratch is shared, so others may lie
    there too."""

    def __init__(self, loaded: Loaded, graph: int) -> None:
        columns, buffers = loaded.verified.columns, loaded.core.buffers
        nodes = columns["graph.nodes"].cast("I")
        kinds, rows = columns["node.kind"], columns["node.row"].cast("I")
        refs, pointed = columns["kernel.refs"].cast("I"), columns["ref.buffer"].cast("I")
        used: set[int] = set()
        for node in range(nodes[graph], nodes[graph + 1]):
            if kinds[node] == 0:
                row = rows[node]
                used.update(pointed[refs[row] : refs[row + 1]])
        self._buffers = [buffers[index] for index in sorted(used) if buffers[index].role == "scratch"]

    def at(self, offset: int) -> str:
        names = [each.name for each in self._buffers if each.offset <= offset < each.offset + each.size]
        return names[0] if names else ""


def _counters(loaded: Loaded, graphs: list[GraphReport]) -> tuple[Counter, ...]:
    core = loaded.core
    rebuilt = {
        name: sum(counter.rebuilt for graph in graphs for counter in graph.counters if counter.name == name)
        for name in ("nodes", "edges")
    }
    return (
        Counter(name="graphs", recorded=len(core.graphs), rebuilt=len(graphs)),
        Counter(name="functions", recorded=len(core.functions), rebuilt=len(loaded.catalogue.functions)),
        Counter(name="modules", recorded=len(core.modules), rebuilt=loaded.device.counters()["modules_live"]),
        Counter(name="nodes", recorded=sum(graph.nodes for graph in core.graphs), rebuilt=rebuilt["nodes"]),
        Counter(name="edges", recorded=sum(graph.edges for graph in core.graphs), rebuilt=rebuilt["edges"]),
    )
