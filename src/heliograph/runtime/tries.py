"""The checker's parent: which tries are made, what their results mean together, and the report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from heliograph.core.manifest import Item
from heliograph.core.policy import Policy
from heliograph.core.report import NARROWING_TIMES, Difference, Narrowed, Outcome, Report, Request, SelfTestResult, Try
from heliograph.core.templates import decode_catalogue
from heliograph.core.verify import VerifiedCore, verify
from heliograph.errors import CheckerError
from heliograph.runtime.attempt import FAULTED, NarrowRun
from heliograph.runtime.child import Ended, run
from heliograph.runtime.patterns import Pattern
from heliograph.runtime.replay import CaseRun, TryRun


@dataclass(slots=True)
class Checker:
    """Runs all tries on one draft."""

    draft: Path
    request: Request
    _tries: list[Try] = field(default_factory=list)

    def run(self) -> Report:
        """The report. CheckerError if not even the first try gave results that others can be compared with."""
        first, base = self._attempt(Pattern.ZEROS, poison=False)
        confirm = self.request.mode == "confirm"
        narrowed: list[Narrowed] = []
        if base is None:
            return self._report(None, [])
        differences = tuple(nan_fields(base.cases))
        if confirm:
            differences += tuple(self._against_record(base))
        self._tries.append(_judged(first, differences))
        for pattern, poison in self._other_tries(confirm):
            narrowed += self._try(base, pattern, poison=poison)
        narrowed += base.written
        return self._report(base, narrowed)

    def _other_tries(self, confirm: bool) -> tuple[tuple[Pattern, bool], ...]:
        """Patterns, and whether padding is poisoned. A draft that keeps nothing in scratch was explored as it is, only
        its results have come in since: one try, the hardest, confirms it."""
        if confirm:
            with self._verified() as verified:
                if not any(region.initial for region in verified.core.regions if region.role == "scratch"):
                    return ((Pattern.LEFTOVERS, True),)
        return ((Pattern.ONES, True), (Pattern.INTEGERS, False), (Pattern.LEFTOVERS, False))

    def _try(self, base: TryRun, pattern: Pattern, *, poison: bool) -> list[Narrowed]:
        """One more try. If a poisoned one differs it is made again without, so that causes are told apart."""
        made, result = self._attempt(pattern, poison=poison)
        if result is None:
            return []
        differences = tuple(compare(base.cases, result.cases, whole=not poison))
        self._tries.append(_judged(made, differences))
        if not differences:
            return []
        if poison:
            return self._try(base, pattern, poison=False)
        return self._narrow(pattern, differences) if self.request.mode == "explore" else []

    def _narrow(self, pattern: Pattern, differences: tuple[Difference, ...]) -> list[Narrowed]:
        found: list[Narrowed] = []
        for graph, case in first_cases(differences):
            ended = run(
                self.draft,
                ("narrow", pattern.value, str(graph), str(case)),
                msgspec.json.encode(self.request),
                NARROWING_TIMES * self.request.limit_seconds,
            )
            if ended.code == 0:
                found += msgspec.json.decode(ended.stdout, type=NarrowRun).narrowed
        return found

    def _attempt(self, pattern: Pattern, *, poison: bool) -> tuple[Try, TryRun | None]:
        """A try whose process ended well has outcome "equal" until it is compared; another is recorded as it is."""
        arguments = ("try", pattern.value, "poison" if poison else "plain")
        ended = run(self.draft, arguments, msgspec.json.encode(self.request), self.request.limit_seconds)
        if ended.code is not None and ended.code > 0 and ended.code != FAULTED:
            raise CheckerError(
                f"loading the draft {self.draft.name} in a fresh process",
                found=ended.stderr or f"exit status {ended.code}",
                required="a draft that loads",
                hint="the first line says which step failed",
            )
        outcomes: dict[int | None, Outcome] = {0: "equal", None: "timeout"}
        made = Try(
            pattern=pattern.value,
            poisoned_padding=poison,
            outcome=outcomes.get(ended.code, "fault"),
            differences=(),
            fault="" if ended.code == 0 else self._describe(ended),
            nanoseconds=ended.nanoseconds,
        )
        if ended.code == 0:
            return made, msgspec.json.decode(ended.stdout, type=TryRun)
        self._tries.append(made)
        return made, None

    def _describe(self, ended: Ended) -> str:
        """Where a process was when it ended: graph, case, node, and what recorded the node."""
        if ended.graph < 0:
            return f"{ended.cause}, before the first replay"
        with self._verified() as verified:
            name = verified.core.graphs[ended.graph].name
            nodes = decode_catalogue(verified.columns)[ended.graph].nodes
            where = f"node {ended.node} ({nodes[ended.node].origin})" if 0 <= ended.node < len(nodes) else "no node"
        return f"{ended.cause}, in {name}, case {ended.case}, {where}"

    def _verified(self) -> VerifiedCore:
        policy = Policy.only(bytes.fromhex(self.request.public_key))
        return verify(self.draft, policy, accept_draft=True)

    def _against_record(self, base: TryRun) -> Iterator[Difference]:
        """What does not equal the self-tests that the draft states."""
        with self._verified() as verified:
            tests = verified.core.self_tests
        for case in base.cases:
            stated = tests[case.graph].cases[case.case]
            if case.outputs != stated.outputs:
                yield Difference(graph=case.graph, case=case.case, field="outputs")
            if case.state != stated.state:
                yield Difference(graph=case.graph, case=case.case, field="state")

    def _report(self, base: TryRun | None, narrowed: list[Narrowed]) -> Report:
        return Report(
            mode=self.request.mode,
            core_digest="" if base is None else base.core_digest,
            device=() if base is None else tuple(Item(name=n, value=str(v)) for n, v in sorted(base.device.items())),
            counters=() if base is None else base.counters,
            graphs=() if base is None else base.graphs,
            tries=tuple(self._tries),
            narrowed=tuple(unique(narrowed)),
            self_tests=() if base is None else tuple(self_tests(base.cases)),
            peak_host_bytes=0 if base is None else base.peak_host_bytes,
            peak_device_bytes=0 if base is None else base.peak_device_bytes,
            phases=() if base is None else base.phases,
            torch_loaded=base is not None and base.torch_loaded,
        )


def compare(base: tuple[CaseRun, ...], other: tuple[CaseRun, ...], *, whole: bool) -> Iterator[Difference]:
    """What differs between two tries, in the cases that the second ran. ``whole``: padding rows of outputs count too,
    since self-tests compare them."""
    before = {(run.graph, run.case): run for run in base}
    for right in other:
        left = before[right.graph, right.case]
        for mine, theirs in zip(left.fields, right.fields, strict=True):
            if mine.real != theirs.real or theirs.nan:
                yield Difference(graph=left.graph, case=left.case, field=mine.name, nan=theirs.nan)
            elif whole and mine.whole != theirs.whole:
                yield Difference(graph=left.graph, case=left.case, field=f"{mine.name} (padding rows)")
        if left.state != right.state:
            yield Difference(graph=left.graph, case=left.case, field="state")


def nan_fields(cases: tuple[CaseRun, ...]) -> Iterator[Difference]:
    for case in cases:
        for output in case.fields:
            if output.nan:
                yield Difference(graph=case.graph, case=case.case, field=output.name, nan=True)


def self_tests(cases: tuple[CaseRun, ...]) -> Iterator[SelfTestResult]:
    """Results by graph; the cases ascend."""
    for graph in sorted({case.graph for case in cases}):
        runs = [case for case in cases if case.graph == graph]
        yield SelfTestResult(
            graph=graph, outputs=tuple(run.outputs for run in runs), states=tuple(run.state for run in runs)
        )


def first_cases(differences: tuple[Difference, ...]) -> list[tuple[int, int]]:
    """The first differing case of each graph: later ones run on the state that it left."""
    first: dict[int, int] = {}
    for each in differences:
        first[each.graph] = min(each.case, first.get(each.graph, each.case))
    return sorted(first.items())


def unique(narrowed: list[Narrowed]) -> list[Narrowed]:
    """Each range once."""
    ranges = {(each.role, each.offset, each.size): each for each in narrowed}
    return sorted(ranges.values(), key=lambda each: (each.role, each.offset))


def _judged(made: Try, differences: tuple[Difference, ...]) -> Try:
    return msgspec.structs.replace(made, outcome="different" if differences else "equal", differences=differences)
