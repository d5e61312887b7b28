"""What each op reaches on this machine, beside what the machine can do: GB/s where memory decides, GFLOP/s elsewhere.

    python benchmarks/ops.py [--workers N] [--runs 7] [--level LEVEL] [--only NAME]

Shapes are those of SmolLM2-135M. Each line is an executable of one op many times over, weights rotating through more
memory than the last cache holds, on the host device as a core uses it, launch cost included. The limits are measured
here too: a kernel that only reads 256 MiB, and one that only multiplies and adds in registers; what works in a cache
can exceed the first. Medians over the runs, beside the best run; a line whose interquartile spread is above 15 %, or a
machine that other work keeps busy, makes the run invalid. The last line is JSON.
"""

from __future__ import annotations

import argparse
import array
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from _judge import busy_share, invalid, print_result
from _machine import machine

import heliograph.ops.lowerings  # noqa: F401  fills the table
from heliograph._native import Executable, HostDevice, Module, Reservation, SealedImage, Template
from heliograph.device.host import best_level, kernel_image, open_host
from heliograph.ops.launch import ITEM_BYTES, LOWERINGS, Kernel, ParamBlock, Value, View
from heliograph.ops.layouts import LAYOUTS
from heliograph.ops.sample import BIASES, MAX_LOGPROBS

BASE = 0x1601_0000_0000
MEMORY = 1 << 30
STREAM = 96 << 20  # weights of a line, more than a last-level cache
WIDTH, HIDDEN, LAYERS, HEADS, KV_HEADS, DIM, VOCABULARY = 576, 1536, 30, 9, 3, 64, 49_152
BLOCK_TOKENS, CONTEXT = 16, 2048
LIMIT = ParamBlock(("x", "ptr"), ("out", "ptr"), ("count", "u64"), ("count_per_block", "u64"))
READ, FMA = Kernel("limits", "read_f32", LIMIT), Kernel("limits", "fma_f32", LIMIT)


@dataclass(slots=True)
class Bench:
    """A device and memory that is handed out from the start for each line. Also the recorder of its lowerings."""

    device: HostDevice
    level: str
    memory: Reservation
    modules: dict[str, Module] = field(default_factory=dict)
    used: int = 0
    template: Template | None = None

    def launch(self, kernel: Kernel, blocks: int, **params: Value | None) -> None:
        if kernel.family not in self.modules:
            image = kernel_image(self.level, kernel.family)
            self.modules[kernel.family] = self.device.load_module(SealedImage(kernel.family, image))
        if self.template is None:
            raise RuntimeError("a launch outside of an executable")
        data, _ = kernel.params.pack(params)
        after = [self.template.node_count - 1] if self.template.node_count else []
        self.template.add_kernel(self.modules[kernel.family].function(kernel.name), (blocks, 1, 1), data, after)

    def scratch(self, shape: Sequence[int], dtype: str) -> View:
        return self.tensor(dtype, *shape)

    def fill(self, view: View, byte: int) -> None:
        raise NotImplementedError("no op of this benchmark fills")

    def copy(self, to: View, source: View) -> None:
        raise NotImplementedError("no op of this benchmark copies")

    def tensor(self, dtype: str, *shape: int, values: Sequence[int] | Sequence[float] | None = None) -> View:
        """Memory full of one small number (0x3C bytes), or of the values."""
        strides, size = [], 1
        for extent in reversed(shape):
            strides.append(size)
            size *= extent
        size *= ITEM_BYTES[dtype]
        at, self.used = self.used, self.used + -(-size // 4096) * 4096
        if values is None:
            self.memory.fill(at, 0x3C, size)
        else:
            self.memory.write(at, array.array({"f32": "f", "i32": "i", "i64": "q"}[dtype], values))
        return View(self.memory.address + at, shape, tuple(reversed(strides)), dtype)

    def executable(self, build: Callable[[Bench], int]) -> tuple[Executable, int]:
        """An executable of the launches that ``build`` makes, and how many calls it says those are."""
        self.used = 0
        self.template = self.device.create_template()
        calls = build(self)
        executable = self.template.instantiate()
        self.template.close()
        self.template = None
        return executable, calls

    def op(self, name: str, *args: object, outs: Sequence[View] = ()) -> None:
        LOWERINGS[f"heliograph.{name}.default"](self, args, {}, tuple(outs))


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table. work: bytes or floating-point operations of a call, in the unit's billions a second."""

    name: str
    unit: str
    work: float
    build: Callable[[Bench], int]


# ---- lines ---------------------------------------------------------------------------------------------------------
def linear_line(layout: str, rows: int, depth: int, outputs: int) -> Line:
    row_bytes = LAYOUTS[layout].row_bytes(depth)
    size = outputs * row_bytes

    def build(bench: Bench) -> int:
        dtype = LAYOUTS[layout].dtype
        x, out = bench.tensor("f32", rows, depth), bench.tensor("f32", rows, outputs)
        calls = max(1, STREAM // size)
        for _ in range(calls):
            weight = bench.tensor(dtype, outputs, row_bytes // ITEM_BYTES[dtype])
            bench.op("linear", x, weight, None, layout, outputs, outs=[out])
        return calls

    name = f"linear {layout} [{rows},{depth}]x[{outputs}]"
    return Line(name, "GB/s", size, build) if rows <= 4 else Line(name, "GFLOP/s", 2.0 * rows * depth * outputs, build)


def attention_line(tokens: int, length: int) -> Line:
    """A decode step of ``tokens`` sequences, or the last chunk of one, at ``length`` tokens of context."""
    decode = tokens < 32
    first = length - 1 if decode else length - tokens
    reached = length if decode else (length + first + 1) / 2

    def build(bench: Bench) -> int:
        blocks = CONTEXT // BLOCK_TOKENS
        sequences = tokens if decode else 1
        cache = bench.tensor("f16", 1 + blocks * sequences, 1, 2, KV_HEADS, BLOCK_TOKENS, DIM)
        tables = bench.tensor("i32", sequences, blocks, values=range(1, 1 + blocks * sequences))
        rows = bench.tensor("i32", tokens, values=range(tokens) if decode else [0] * tokens)
        positions = bench.tensor("i32", tokens, values=[first] * tokens if decode else range(first, length))
        q, out = bench.tensor("f32", tokens, HEADS, DIM), bench.tensor("f32", tokens, HEADS, DIM)
        for _ in range(10):
            bench.op("paged_attention", q, cache, 0, tables, rows, positions, 0.125, outs=[out])
        return 10

    kind = "decode" if decode else "prefill"
    return Line(f"paged_attention {kind} {tokens} at {length}", "GFLOP/s", 4.0 * tokens * HEADS * DIM * reached, build)


def sample_line(name: str, temperature: float, top_k: int, top_p: float) -> Line:
    def build(bench: Bench) -> int:
        source = random.Random(7)

        def all_rows(dtype: str, value: float) -> View:
            return bench.tensor(dtype, 1, values=[value if dtype == "f32" else int(value)])

        logits = bench.tensor("f32", 1, VOCABULARY, values=[source.gauss(0, 3) for _ in range(VOCABULARY)])
        args = (
            logits, all_rows("i32", 0), all_rows("i32", 0), all_rows("f32", temperature), all_rows("i32", top_k),
            all_rows("f32", top_p), *(all_rows("f32", v) for v in (0, 0, 0, 1)),
            bench.tensor("i32", 1, BIASES, values=[-1] * BIASES), bench.tensor("f32", 1, BIASES), all_rows("i32", -1),
            bench.tensor("i32", 1, VOCABULARY // 32), all_rows("i64", 1), all_rows("i32", 0), all_rows("i32", 0),
            bench.tensor("i32", 1, CONTEXT), bench.tensor("i32", 1),
        )  # fmt: skip
        outs = [
            bench.tensor("i32", 1), bench.tensor("f32", 1, 1 + MAX_LOGPROBS), bench.tensor("i32", 1, MAX_LOGPROBS)
        ]  # fmt: skip
        for _ in range(20):
            bench.op("sample", *args, outs=outs)
        return 20

    return Line(f"sample {name} [1,{VOCABULARY}]", "GB/s", 4.0 * VOCABULARY, build)


def row_lines(tokens: int) -> list[Line]:
    """The small ops at ``tokens`` rows: bytes read and written."""

    def many(call: Callable[[Bench], Callable[[], None]]) -> Callable[[Bench], int]:
        def build(bench: Bench) -> int:
            once = call(bench)
            for _ in range(100):
                once()
            return 100

        return build

    def matrices(bench: Bench, op: str, columns: int) -> Callable[[], None]:
        x, y, out = (bench.tensor("f32", tokens, columns) for _ in range(3))
        return lambda: bench.op(op, x, y, outs=[out])

    def norm(bench: Bench) -> Callable[[], None]:
        x, weight, out = (
            bench.tensor("f32", tokens, WIDTH),
            bench.tensor("f32", WIDTH),
            bench.tensor("f32", tokens, WIDTH),
        )
        return lambda: bench.op("rms_norm", x, weight, 1e-5, outs=[out])

    def rope(bench: Bench) -> Callable[[], None]:
        x, out = bench.tensor("f32", tokens, HEADS, DIM), bench.tensor("f32", tokens, HEADS, DIM)
        positions, inv = bench.tensor("i32", tokens, values=range(tokens)), bench.tensor("f32", DIM // 2)
        return lambda: bench.op("rope", x, positions, inv, True, outs=[out])

    def kv_store(bench: Bench) -> Callable[[], None]:
        k, v = bench.tensor("f32", tokens, KV_HEADS, DIM), bench.tensor("f32", tokens, KV_HEADS, DIM)
        blocks = -(-tokens // BLOCK_TOKENS)
        cache = bench.tensor("f16", 1 + blocks, 1, 2, KV_HEADS, BLOCK_TOKENS, DIM)
        tables = bench.tensor("i32", 1, blocks, values=range(1, blocks + 1))
        rows, positions = (
            bench.tensor("i32", tokens, values=[0] * tokens),
            bench.tensor("i32", tokens, values=range(tokens)),
        )
        return lambda: bench.op("kv_store", k, v, cache, 0, tables, rows, positions)

    def embedding(bench: Bench) -> Callable[[], None]:
        row_bytes = LAYOUTS["q8_0"].row_bytes(WIDTH)
        weight, out = bench.tensor("u8", VOCABULARY, row_bytes), bench.tensor("f32", tokens, WIDTH)
        ids = bench.tensor("i32", tokens, values=[i * 37 % VOCABULARY for i in range(tokens)])
        return lambda: bench.op("embedding", ids, weight, "q8_0", WIDTH, outs=[out])

    def gather(bench: Bench) -> Callable[[], None]:
        x, out = bench.tensor("f32", 256, WIDTH), bench.tensor("f32", tokens, WIDTH)
        index = bench.tensor("i32", tokens, values=range(tokens))
        return lambda: bench.op("gather_rows", x, index, outs=[out])

    row = 4.0 * tokens
    return [
        Line(f"embedding q8_0 [{tokens},{WIDTH}]", "GB/s", row * WIDTH * 1.27, many(embedding)),
        Line(f"rms_norm [{tokens},{WIDTH}]", "GB/s", row * WIDTH * 2, many(norm)),
        Line(f"rope [{tokens},{HEADS},{DIM}]", "GB/s", row * HEADS * DIM * 2, many(rope)),
        Line(f"kv_store [{tokens},{KV_HEADS},{DIM}]", "GB/s", row * KV_HEADS * DIM * 3, many(kv_store)),
        Line(
            f"silu_mul [{tokens},{HIDDEN}]", "GB/s", row * HIDDEN * 3, many(lambda b: matrices(b, "silu_mul", HIDDEN))
        ),
        Line(f"add [{tokens},{WIDTH}]", "GB/s", row * WIDTH * 3, many(lambda b: matrices(b, "add", WIDTH))),
        Line(f"gather_rows [{tokens},{WIDTH}]", "GB/s", row * WIDTH * 2, many(gather)),
    ]


def token_line() -> Line:
    """All linears of one decode step of SmolLM2-135M: q4_1, the head q8_0. In bytes of weights."""
    shapes = [(WIDTH, WIDTH)] * 2 + [(WIDTH, KV_HEADS * DIM)] * 2 + [(WIDTH, HIDDEN)] * 2 + [(HIDDEN, WIDTH)]
    layers = [("q4_1", *shape) for _ in range(LAYERS) for shape in shapes]
    every = [*layers, ("q8_0", WIDTH, VOCABULARY)]

    def build(bench: Bench) -> int:
        x, out = bench.tensor("f32", 1, HIDDEN), bench.tensor("f32", 1, VOCABULARY)
        for layout, depth, outputs in every:
            weight = bench.tensor("u8", outputs, LAYOUTS[layout].row_bytes(depth))
            row = View(x.address, (1, depth), (depth, 1), "f32")
            bench.op("linear", row, weight, None, layout, outputs, outs=[out])
        return 1

    return Line("all linears of a token", "GB/s", sum(n * LAYOUTS[a].row_bytes(k) for a, k, n in every), build)


def lines() -> list[Line]:
    shapes = [(WIDTH, WIDTH), (WIDTH, HIDDEN), (HIDDEN, WIDTH)]
    small = [linear_line(a, t, k, n) for a in LAYOUTS for t in (1, 4) for k, n in shapes[1:]]
    head = [linear_line("q8_0", 1, WIDTH, VOCABULARY)]
    large = [linear_line(a, t, k, n) for a in LAYOUTS for t in (16, 256) for k, n in shapes[1:]]
    attention = [attention_line(*shape) for shape in ((1, 128), (1, 2048), (8, 512), (256, 256), (256, 2048))]
    samples = [("greedy", 0.0, 0, 1.0), ("top-k 40", 0.8, 40, 1.0), ("top-p 0.9", 0.8, 0, 0.9), ("plain", 1.0, 0, 1.0)]
    return [
        token_line(), *small, *head, *large, *attention, *row_lines(1), *row_lines(256),
        *(sample_line(*settings) for settings in samples),
    ]  # fmt: skip


# ---- measuring -----------------------------------------------------------------------------------------------------
def limit_lines(workers: int) -> tuple[Line, Line]:
    count, blocks, depth = 64 << 20, 64 * workers, 1 << 22

    def read(bench: Bench) -> int:
        x, out = bench.tensor("f32", count), bench.tensor("f32", blocks)
        bench.launch(READ, blocks, x=x, out=out, count=count, count_per_block=count // blocks)
        return 1

    def fma(bench: Bench) -> int:
        x, out = bench.tensor("f32", 64), bench.tensor("f32", blocks)
        bench.launch(FMA, blocks, x=x, out=out, count=0, count_per_block=depth)
        return 1

    return Line("limit: read", "GB/s", 4.0 * count, read), Line(
        "limit: multiply-add", "GFLOP/s", 2.0 * depth * blocks, fma
    )


def measure(bench: Bench, line: Line, runs: int) -> list[int]:
    """Nanoseconds of a call, run by run."""
    executable, calls = bench.executable(line.build)
    stream = bench.device.create_stream()
    times = []
    for _ in range(runs + 1):
        begun = time.perf_counter_ns()
        executable.launch(stream)
        stream.synchronize()
        times.append((time.perf_counter_ns() - begun) // calls)
    executable.close()
    return times[1:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--level", default=best_level())
    parser.add_argument("--only", default="", help="lines whose name contains this")
    arguments = parser.parse_args()
    busy = busy_share()
    device = open_host(arguments.workers)
    memory = device.reserve(BASE, MEMORY)
    memory.map(0, MEMORY)
    bench = Bench(device, arguments.level, memory)
    limits: dict[str, float] = {}
    table = []
    print(f"{device.workers} workers, {arguments.level}, medians of {arguments.runs} runs")
    print(f"{'op':<44} {'us':>10} {'best':>10} {'rate':>8} {'unit':<8} {'of limit':>8} {'spread':>7}")
    for line in [*limit_lines(device.workers), *(line for line in lines() if arguments.only in line.name)]:
        times = measure(bench, line, max(3, arguments.runs))
        low, middle, high = statistics.quantiles(times, n=4)
        rate, spread = line.work / middle, (high - low) / middle
        limits.setdefault(line.unit, rate)
        share = rate / limits[line.unit]
        entry = {
            "op": line.name, "ns": int(middle), "best_ns": min(times), "rate": round(rate, 3), "unit": line.unit,
            "of_limit": round(share, 4), "spread": round(spread, 4),
        }  # fmt: skip
        best = min(times) / 1000
        print(
            f"{line.name:<44} {middle / 1000:10.1f} {best:10.1f} {rate:8.2f} {line.unit:<8} {share:8.1%} {spread:7.1%}"
        )
        table.append(entry)
    memory.close()
    device.close()
    conditions = {"level": arguments.level, "workers": device.workers, "runs": arguments.runs}
    return 0 if report(table, conditions, busy) else 1


def report(table: Sequence[Mapping[str, Any]], conditions: Mapping[str, object], busy: float) -> bool:
    problems = invalid({line["op"]: line["spread"] for line in table}, busy)
    return print_result(
        benchmark="ops",
        ok=True,
        bar=None,
        problems=problems,
        lines=table,
        load={"average": os.getloadavg()[0], "busy_share_at_start": round(busy, 3)},
        **conditions,
        **machine(),
    )


if __name__ == "__main__":
    sys.exit(main())
