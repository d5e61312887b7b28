"""Two captures of one model in two slots, made up: kernels of any layout with pointers, numbers and left-overs planted
in their parameters, and what a census has to find there."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from typing import Any

import msgspec

from heliograph.capture.owned import Owned
from heliograph.capture.words import RecordedKernel, RecordedNode, RecordedNodes, Words
from heliograph.core.format import SLOT_STRIDE, region_base
from heliograph.core.layout import padded
from heliograph.core.manifest import Buffer
from heliograph.core.templates import KIND_COPY, KIND_EMPTY, KIND_KERNEL, KIND_MEMSET, Ref

FIRST, SECOND = 1, 3
STEP = (SECOND - FIRST) * SLOT_STRIDE
SIZES = (0, 1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 30, 128)  # of parameters
ALIGNMENTS = {0: 1, 1: 1, 2: 2, 3: 1, 4: 4, 6: 2, 12: 4, 20: 4, 30: 2}  # 8 for the others


def buffer(name: str, role: str, offset: int, size: int, *, grows: bool = False) -> Buffer:
    return Buffer(name=name, role=role, offset=offset, size=size, dtype="u8", shape=(size,), grows=grows)


def table() -> list[Buffer]:
    """Buffers one behind the other, by role; the last of `state` grows."""
    buffers, ends = [], dict.fromkeys(("weights", "constants", "persistent", "state", "io", "scratch"), 0)
    for role in ends:
        for number, size in enumerate((4096, 100, 1, 70000)):
            buffers.append(buffer(f"{role}/{number}", role, ends[role], size, grows=role == "state" and number == 3))
            ends[role] += padded(size)
    return buffers


BUFFERS = table()
OWNED = Owned(BUFFERS, FIRST)


def address(index: int, offset: int = 0, slot: int = FIRST) -> int:
    return region_base(slot, BUFFERS[index].role) + BUFFERS[index].offset + offset


def nobody(word: int) -> str | None:
    """A driver that knows the allocations of the first slot and nothing else."""
    return "memory of ours" if word in OWNED else None


class Driver:
    """Allocations that are not ours, by address and size."""

    def __init__(self, *allocations: tuple[int, int, str]) -> None:
        self.allocations = allocations
        self.asked: list[int] = []

    def __call__(self, word: int) -> str | None:
        self.asked.append(word)
        found = (name for start, size, name in self.allocations if start <= word < start + size)
        return next(found, nobody(word))


@dataclass
class Planted:
    """A kernel's parameters in both slots, and what is in them."""

    layout: tuple[tuple[int, int], ...] = ()
    one: bytearray = field(default_factory=bytearray)
    two: bytearray = field(default_factory=bytearray)
    refs: list[Ref] = field(default_factory=list)
    zeroed: set[int] = field(default_factory=set)  # bytes
    numbers: int = 0

    def node(self, second: bool = False, **changes: Any) -> RecordedNode:
        params = bytes(self.two if second else self.one)
        return kernel_node(params, self.layout, **changes)


def kernel_node(params: bytes, layout: tuple[tuple[int, int], ...], **changes: Any) -> RecordedNode:
    kernel = RecordedKernel("_Z4gemm", "ab" * 32, params, layout, (4, 2, 1), (128, 1, 1), 1024)
    return msgspec.structs.replace(RecordedNode(KIND_KERNEL, "aten.mm layers.0 model.py:12", kernel), **changes)


def single(*words: tuple[int, int], layout: tuple[tuple[int, int], ...] | None = None) -> tuple[Words, Words]:
    """Two captures of one kernel with these 8-byte words, (first, second), one parameter each or in ``layout``."""
    layout = layout or tuple((8 * i, 8) for i in range(len(words)))
    sides = [struct.pack(f"<{len(words)}Q", *(pair[side] for pair in words)) for side in (0, 1)]
    return captures(*(kernel_node(params, layout) for params in sides))


def captures(one: RecordedNode, two: RecordedNode) -> tuple[Words, Words]:
    return (
        Words(FIRST, (RecordedNodes("decode/8", (one,)),)),
        Words(SECOND, (RecordedNodes("decode/8", (two,)),)),
    )


def pointer(index: int, offset: int = 0) -> tuple[int, int]:
    """The same place in both slots."""
    return address(index, offset), address(index, offset, SECOND)


def plant(rng: random.Random) -> Planted:
    """A random signature with random contents."""
    planted = Planted()
    layout: list[tuple[int, int]] = []
    end = 0
    for _ in range(rng.randrange(9)):
        size = rng.choice(SIZES)
        unit = ALIGNMENTS.get(size, 8)
        offset = -(-end // unit) * unit
        layout.append((offset, size))
        end = offset + size
    planted.layout = tuple(layout)
    end += rng.choice((0, 0, 4)) if end else 0  # bytes behind the last parameter
    planted.one, planted.two = bytearray(rng.randbytes(end)), bytearray(end)
    planted.two[:] = planted.one
    inside = set()
    for offset, size in layout:
        inside |= set(range(offset, offset + size))
        _fill(rng, planted, offset, size)
    for at in range(end):
        if at not in inside:  # between parameters: left-overs, or zeros in a run of their own
            planted.two[at] = rng.randrange(256)
    gaps = [at for at in range(end) if at not in inside]
    for run in _runs(gaps):
        if any(planted.one[at] for at in run):
            planted.zeroed |= set(run)
    return planted


def _runs(places: list[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for at in places:
        if runs and runs[-1][-1] == at - 1:
            runs[-1].append(at)
        else:
            runs.append([at])
    return runs


def _fill(rng: random.Random, planted: Planted, offset: int, size: int) -> None:
    """Cuts a parameter into pieces: pointers of 8 bytes at 4-byte offsets, numbers, left-over bytes."""
    halves = [""] * (size // 4)
    at = 0
    while at < size:
        room = size - at
        kind = rng.choice(("pointer", "number", "number", "null", "looks", "left-over"))
        if kind in ("pointer", "null", "looks") and room >= 8:
            index = rng.randrange(len(BUFFERS))
            inner = rng.choice((0, 0, BUFFERS[index].size, rng.randrange(BUFFERS[index].size + 1)))
            words = {"pointer": pointer(index, inner), "null": (0, 0), "looks": (address(index, inner),) * 2}[kind]
            for side, word in zip((planted.one, planted.two), words, strict=True):
                side[offset + at : offset + at + 8] = word.to_bytes(8, "little")
            if kind == "pointer":
                planted.refs.append(Ref(offset + at, index, inner))
                halves[at // 4] = halves[at // 4 + 1] = "pointer"
            at += 8
        elif kind == "left-over":
            for place in sorted(rng.sample(range(min(4, room)), rng.randint(1, min(4, room)))):
                planted.two[offset + at + place] = planted.one[offset + at + place] ^ rng.randint(1, 255)
                planted.zeroed.add(offset + at + place)
                if at // 4 < len(halves):
                    halves[at // 4] = "left-over"
            at += 4
        else:
            at += 4
    words = [not (halves[i] or halves[i + 1]) for i in range(len(halves) - 1)]
    if size and len(words) == 0:  # too short for a word: one number, unless some of it is left over
        touched = any(offset <= place < offset + size for place in planted.zeroed)
        planted.numbers += not touched
    planted.numbers += sum(words)


def memset(to: int, size: int = 64, **changes: Any) -> RecordedNode:
    return msgspec.structs.replace(RecordedNode(KIND_MEMSET, "aten.zero_ model.py:3"), address=to, size=size, **changes)


def copy(to: int, source: int, size: int = 64) -> RecordedNode:
    return RecordedNode(KIND_COPY, "aten.copy_ model.py:4", address=to, source=source, size=size)


EMPTY = RecordedNode(KIND_EMPTY)
