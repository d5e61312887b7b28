"""Verification replays: one try is one scratch pattern over all buckets, in a process of its own.

Every graph is rebuilt, compared, instantiated, replayed on the inputs of its self-test and given back before the next
one, so a catalogue whose executables do not fit the device together can be checked. Before each replay what a graph
must not depend on is filled: scratch with the pattern, and with ``poison`` also padding rows of inputs, outputs and
the padding unit of growing state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from blake3 import blake3

from heliograph._native import Executable, Template
from heliograph.core.manifest import Bucket, Case, Digest, Field, Graph, Phase, Record
from heliograph.core.report import Counter, GraphReport, Narrowed, Padding
from heliograph.errors import DriverError
from heliograph.runtime.loaded import Loaded
from heliograph.runtime.numbers import has_nan
from heliograph.runtime.plan import executable_limit, takes_too_much
from heliograph.runtime.selftest import distinct_cases, prepare_state, state_digest

PAUSES = (0, 0.05, 0.1, 0.2, 0.4, 0.8)  # seconds before each measurement of what an executable takes
POISON = 0xFF  # a NaN as a float, -1 as an integer


class FieldRun(Record, frozen=True, kw_only=True):
    """One output after a replay: its digest over real rows, and over all of them."""

    name: str
    real: Digest
    whole: Digest
    nan: bool  # in a real row


class CaseRun(Record, frozen=True, kw_only=True):
    graph: int
    case: int
    fields: tuple[FieldRun, ...]
    outputs: Digest  # over all fields, as in core.json
    state: Digest


class TryRun(Record, frozen=True, kw_only=True):
    """What one try's process tells its parent."""

    cases: tuple[CaseRun, ...]
    graphs: tuple[GraphReport, ...]
    written: tuple[Narrowed, ...]  # constants that a replay wrote
    counters: tuple[Counter, ...]
    device: Mapping[str, int]
    phases: tuple[Phase, ...]
    peak_host_bytes: int
    peak_device_bytes: int
    torch_loaded: bool
    core_digest: str


class Replayer:
    """Replays buckets of a loaded core. ``fill`` puts scratch into its condition before each replay; ``at(graph,
    case)`` is told what comes next. With ``poison`` also what belongs to no real row holds nothing of use."""

    def __init__(
        self,
        loaded: Loaded,
        padding: Sequence[Padding],
        fill: Callable[[], None],
        *,
        poison: bool = False,
        at: Callable[[int, int], None] = lambda graph, case: None,
    ) -> None:
        self._loaded = loaded
        self._fill_scratch = fill
        self._poison = poison
        self._at = at
        self.constants = Constants(loaded)
        self._real = {(row.graph, row.case, row.output, row.field): row for row in padding}

    def run_all(self, *, leftovers: bool = False, repeats: bool = True) -> tuple[list[CaseRun], list[GraphReport]]:
        """The cases of every graph, without ``repeats`` the distinct ones; results ascend by graph and case.

        For left-overs all buckets run once, then all again backwards: what each finds in scratch is what others left.
        """
        numbers = list(range(len(self._loaded.core.graphs)))
        if leftovers:
            for graph in numbers:
                self.run_graph(graph, cases=1)
            numbers.reverse()
        cases, reports = [], []
        for graph in numbers:
            cases_of_graph = None if repeats else distinct_cases(self._loaded.core.self_tests[graph])
            runs, report = self.run_graph(graph, cases=cases_of_graph)
            cases += runs
            reports.append(report)
        cases.sort(key=lambda run: (run.graph, run.case))
        reports.sort(key=lambda report: report.graph)
        return cases, reports

    def run_graph(self, graph: int, *, cases: int | None = None) -> tuple[list[CaseRun], GraphReport]:
        """Builds a graph, replays its first ``cases`` cases (all if left out) and gives the executable back."""
        report, executable = build(self._loaded, graph)
        self._loaded.catalogue.keep(graph, executable)
        try:
            return self.replay(graph, cases=cases), report
        finally:
            self._loaded.catalogue.release(graph)

    def replay(self, graph: int, *, cases: int | None = None) -> list[CaseRun]:
        """The cases of a built graph, from the state that a self-test starts with."""
        chosen = self._loaded.core.self_tests[graph].cases[:cases]
        units = prepare_state(self._loaded, chosen)
        region = self._loaded.growing
        if self._poison and region is not None and units:
            self._loaded.memory.fill(region.role, region.grow_at, POISON, region.grow)
        runs = [self._run_case(graph, number, case) for number, case in enumerate(chosen)]
        self.constants.compare()
        return runs

    def _run_case(self, graph: int, number: int, case: Case) -> CaseRun:
        loaded, bucket = self._loaded, self._loaded.bucket_of(graph)
        self._fill_scratch()
        loaded.write_inputs(bucket, loaded.verified.blob(case.inputs))
        for field in bucket.inputs:
            row = self._real.get((graph, number, False, field.name))
            if self._poison and row is not None and row.poison:
                self._fill(field, row.real_bytes, POISON)
        for field in bucket.outputs:
            self._fill(field, 0, POISON if self._poison else 0)
        self._at(graph, number)
        loaded.launch(bucket)
        loaded.drain()
        return self._result(graph, number, bucket, case.units)

    def _fill(self, field: Field, begin: int, value: int) -> None:
        buffer = self._loaded.buffer(field)
        self._loaded.memory.fill(buffer.role, buffer.offset + begin, value, buffer.size - begin)

    def _result(self, graph: int, case: int, bucket: Bucket, units: int) -> CaseRun:
        whole = blake3()
        fields = []
        for field, data in zip(bucket.outputs, self._loaded.read_fields(bucket.outputs), strict=True):
            row = self._real.get((graph, case, True, field.name))
            real = data if row is None else data[: row.real_bytes]
            whole.update(data)
            fields.append(
                FieldRun(
                    name=field.name,
                    real=blake3(real).hexdigest(),
                    whole=blake3(data).hexdigest(),
                    nan=has_nan(real, self._loaded.buffer(field).dtype),
                )
            )
        state = state_digest(self._loaded, units)
        return CaseRun(graph=graph, case=case, fields=tuple(fields), outputs=whole.hexdigest(), state=state)


def build(loaded: Loaded, graph: int) -> tuple[GraphReport, Executable]:
    """Rebuilds and instantiates one graph; the report says what of it is as recorded. CheckerError if it takes more of
    the device than loads reserve for it."""
    core, catalogue = loaded.core, loaded.catalogue
    template = catalogue.build(graph)
    try:
        stated = core.graphs[graph]
        counters = (
            Counter(name="nodes", recorded=stated.nodes, rebuilt=template.node_count),
            Counter(name="edges", recorded=stated.edges, rebuilt=template.edge_count),
        )
        try:
            catalogue.compare(template, graph)
            same = True
        except DriverError:
            same = False
        start = time.perf_counter_ns()
        executable = _measured(template, stated, loaded.plan.overhead.rounding)
        spent = time.perf_counter_ns() - start
    finally:
        template.close()
    report = GraphReport(
        graph=graph,
        counters=counters,
        same_order=same,
        flags=executable.flags,
        device_bytes=executable.device_bytes,
        host_bytes=executable.host_bytes,
        instantiate_nanoseconds=spent,
    )
    return report, executable


def _measured(template: Template, stated: Graph, rounding: int) -> Executable:
    """An executable that takes no more of the device than loads reserve. What it takes is the memory that is free less
    afterwards, so another process on the device can make one look large: it is made again, later and later, before that
    is believed. Those that look large are kept meanwhile: a driver gives the memory of a destroyed executable to the
    next one, which would seem to take none.
    """
    large: list[Executable] = []
    try:
        for pause in PAUSES:
            time.sleep(pause)
            executable = template.instantiate(stated.flags)
            if executable.device_bytes <= executable_limit(stated.nodes, rounding):
                return executable
            large.append(executable)
        least = min(each.device_bytes for each in large)
    finally:
        for each in large:
            each.close()
    raise takes_too_much(
        f"the executable of {stated.name}", stated.nodes, least, executable_limit(stated.nodes, rounding)
    )


class Constants:
    """Proves that no replay writes to ``constants``: its bytes before and after each graph, buffer by buffer."""

    def __init__(self, loaded: Loaded) -> None:
        self._memory = loaded.memory
        self._buffers = [buffer for buffer in loaded.core.buffers if buffer.role == "constants"]
        self._size = loaded.memory.mapped("constants")
        self._before = self._memory.read("constants", 0, self._size) if self._size else b""
        self._written: dict[str, Narrowed] = {}

    def compare(self) -> None:
        """Notes the buffers that changed and puts them back, so that graphs do not blame each other."""
        if not self._size or self._memory.read("constants", 0, self._size) == self._before:
            return
        for buffer in self._buffers:
            before = self._before[buffer.offset : buffer.offset + buffer.size]
            if self._memory.read("constants", buffer.offset, buffer.size) != before:
                self._written[buffer.name] = Narrowed(
                    role="constants",
                    offset=buffer.offset,
                    size=buffer.size,
                    buffer=buffer.name,
                    content=before,
                )
        self._memory.write("constants", 0, self._before)

    @property
    def written(self) -> tuple[Narrowed, ...]:
        """The buffers that some graph wrote to."""
        return tuple(self._written.values())
