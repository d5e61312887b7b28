"""What capture asks the checker and what the checker answers, as JSON on stdin and stdout of its process."""

from __future__ import annotations

from typing import Literal

from heliograph.core.manifest import Digest, Item, Phase, Record

Outcome = Literal["equal", "different", "fault", "timeout"]  # of a try


class Padding(Record, frozen=True, kw_only=True):
    """Padding rows of one field in one self-test case: its bytes from ``real_bytes`` on belong to no real row."""

    graph: int
    case: int
    field: str
    output: bool  # an output of the graph's bucket: left out of comparisons; else an input
    real_bytes: int
    poison: bool  # an input that may hold anything there (floats); false where ops need a valid value (ids)


class Request(Record, frozen=True, kw_only=True):
    """Stdin of the checker. The draft's folder is its only argument."""

    public_key: str  # the scratch key that signed the draft: raw Ed25519, hexadecimal
    mode: str  # "explore": find what matters and measure; "confirm": nothing may be left to find
    workers: int  # 0: as many as the machine has
    limit_seconds: int  # of one try
    memory_limit: int = 0  # bytes of the device, 0: no limit of its own
    index: int = 0  # of the CUDA device
    padding: tuple[Padding, ...] = ()  # fields without an entry have real rows only


class Counter(Record, frozen=True, kw_only=True):
    """One count as recorded in the core and as found after the rebuild."""

    name: str  # "nodes", "edges", "functions", "modules", ...
    recorded: int
    rebuilt: int


class GraphReport(Record, frozen=True, kw_only=True):
    """One graph after its rebuild."""

    graph: int
    counters: tuple[Counter, ...]
    same_order: bool  # nodes and edges read back in the recorded order
    flags: int  # read back from the executable
    device_bytes: int  # cost of the executable
    host_bytes: int
    instantiate_nanoseconds: int


class Difference(Record, frozen=True, kw_only=True):
    """One output that a try changed."""

    graph: int
    case: int  # of the graph's self-test
    field: str  # output name, or "state"
    nan: bool = False  # a NaN in a real row: fails even where both sides have it


class Try(Record, frozen=True, kw_only=True):
    """All buckets run once with scratch filled by one pattern, in a process of its own."""

    pattern: str  # "zeros" | "ones" | "integers" | "left-overs"
    poisoned_padding: bool
    outcome: Outcome
    differences: tuple[Difference, ...]
    fault: str  # the fault's record, or ""
    nanoseconds: int


class Narrowed(Record, frozen=True, kw_only=True):
    """Scratch that matters, narrowed down: it is kept as initial content. Or constants that a replay writes."""

    role: str  # the region it was found in
    offset: int
    size: int
    buffer: str  # name of the buffer it lies in, or ""
    content: bytes  # what it must start with


class SelfTestResult(Record, frozen=True, kw_only=True):
    """What each case of a graph's self-test gave, in the order of the cases."""

    graph: int
    outputs: tuple[Digest, ...]
    states: tuple[Digest, ...]


class Report(Record, frozen=True, kw_only=True):
    """Stdout of the checker."""

    mode: str
    core_digest: str  # of the draft that was loaded
    device: tuple[Item, ...]  # the device's counters at the end, as text
    counters: tuple[Counter, ...]  # over the whole catalogue
    graphs: tuple[GraphReport, ...]
    tries: tuple[Try, ...]
    narrowed: tuple[Narrowed, ...]
    self_tests: tuple[SelfTestResult, ...]
    peak_host_bytes: int
    peak_device_bytes: int
    phases: tuple[Phase, ...]
    torch_loaded: bool  # whether a torch library is in the process's memory maps


NARROWING_TIMES = 10  # a process that narrows a difference down may take that many times the limit of a try
PATTERNS = ("zeros", "ones", "integers", "left-overs")
