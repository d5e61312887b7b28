"""Target, limits, slot, regions, buffers: M30 to M37, M53."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from math import prod

from heliograph.core.format import (
    BUFFER_ALIGNMENT,
    CUDA_LIMITS,
    DTYPES,
    INITIAL_ROLES,
    ROLES,
    SLOT_BASE,
    SLOT_SPAN,
    SLOT_STRIDE,
    SLOTS,
    SPAN_UNIT,
)
from heliograph.core.manifest import NAME, Buffer, Core, Region
from heliograph.core.refusal import refusal

DOING = "checking core.json"
NAME_BYTES = bytes(byte for byte in range(0x21, 0x7F) if byte != 0x5C)  # of a Name, the slash included
_WORD = 4 << 30  # bytes of addresses that share their high 32 bits


def check_target(core: Core) -> None:
    target = core.target
    limits = (target.processors, target.shared_optin, target.driver)
    fits = {"host": target.abi >= 1 and not any(limits), "cuda": target.abi == 0 and all(limits)}
    if not (
        core.model
        and core.numerics in {"row-invariant", "fast"}
        and target.arch
        and target.ranks >= 1
        and fits.get(target.device, False)
    ):
        raise refusal(DOING, f"numerics {core.numerics}, {target}", "a target and numerics of the format", "M30")


def check_limits(core: Core) -> None:
    names = [name for name, _ in core.limits]
    known = CUDA_LIMITS if core.target.device == "cuda" else ()
    if names != sorted(set(names)) or not set(known).issuperset(names):
        raise refusal(DOING, f"context limits {names}", f"of {list(known)}, sorted, each once", "M53")


def check_regions(core: Core) -> None:
    if core.slot >= SLOTS:
        raise refusal(DOING, f"slot {core.slot}", f"0 to {SLOTS - 1}", "M31")
    start = SLOT_BASE + core.slot * SLOT_STRIDE
    free = start
    for region in core.regions:
        base = int(region.base, 16)
        if region.role not in ROLES or base % _WORD or (base // _WORD) % 64 != 1:
            raise refusal(DOING, f"region {region.role} at {region.base}", "a known role at 4 GiB x (64 m + 1)", "M31")
        if base < free or base + region.span > start + SLOT_SPAN:
            raise refusal(
                DOING,
                f"region {region.role} at {region.base} of {region.span} bytes",
                f"spans that ascend, do not overlap and lie in slot {core.slot}",
                "M31",
            )
        if region.span == 0 or region.span % SPAN_UNIT:
            raise refusal(
                DOING,
                f"region {region.role} of {region.span} bytes",
                f"a span of {SPAN_UNIT} bytes or multiples",
                "M31",
            )
        free = base + region.span
        if region.size > region.span:
            raise refusal(DOING, f"region {region.role} of {region.size} bytes", f"at most {region.span}", "M32")
        check_initial(region)
    if len({region.role for region in core.regions}) != len(core.regions):
        raise refusal(DOING, "two regions of one role", "at most one each", "M31")


def check_initial(region: Region) -> None:
    if region.initial and region.role not in INITIAL_ROLES:
        raise refusal(DOING, f"initial content for {region.role}", "constants, persistent or scratch", "M34")
    free = 0
    for part in region.initial:
        if part.size == 0 or part.offset < free or part.offset + part.size > region.size:
            raise refusal(
                DOING,
                f"initial content of {region.role} at {part.offset} of {part.size} bytes",
                f"slices that ascend, do not overlap and end within {region.size} bytes",
                "M34",
            )
        free = part.offset + part.size


def check_buffers(core: Core) -> None:
    """One pass: a core of a language model has 10,000 buffers and more, and a worker waits for this."""
    check_names([buffer.name for buffer in core.buffers])
    limits = {region.role: region.size for region in core.regions}
    growing: list[Buffer] = []
    for buffer in core.buffers:
        limit = limits.get(buffer.role)
        if limit is None or buffer.offset % BUFFER_ALIGNMENT:
            raise refusal(
                DOING, f"{buffer.name} at {buffer.offset} of {buffer.role}", "a multiple of 256 in a region", "M35"
            )
        if buffer.grows:
            growing.append(buffer)
        elif buffer.offset + buffer.size > limit:
            end = buffer.offset + buffer.size
            raise refusal(DOING, f"{buffer.name} ending at {end} of {buffer.role}", f"within its {limit} bytes", "M35")
        item = DTYPES.get(buffer.dtype)
        size = prod(buffer.shape) * item if item else -1
        if size < 0 or size > buffer.size or (size != buffer.size and buffer.role == "io"):
            raise refusal(
                DOING,
                f"{buffer.name}: {buffer.dtype} {list(buffer.shape)} in {buffer.size} bytes of {buffer.role}",
                "a known dtype and a shape that fits (in io: exactly)",
                "M37",
            )
    if len({buffer.name for buffer in core.buffers}) != len(core.buffers):
        (name, _), *_ = Counter(buffer.name for buffer in core.buffers).most_common(1)
        raise refusal(DOING, f"two buffers named {name}", "unique names", "M35")
    for region in core.regions:
        check_growth(region, [buffer for buffer in growing if buffer.role == region.role])
    check_distance(core)


def check_names(names: list[str]) -> None:
    """Each is a Name of the format. As one text: a pattern for each of them costs ten times as much."""
    text = f"/{'/'.join(names)}/"
    parts = ("//", "/./", "/../")
    if text.isascii() and not text.encode().translate(None, NAME_BYTES) and not any(part in text for part in parts):
        return
    wrong = next((name for name in names if re.fullmatch(NAME, name) is None), "")
    raise refusal(DOING, f"a buffer named {wrong!r}", "parts of printable ASCII, not . or .., between slashes", "M4")


def check_growth(region: Region, growing: list[Buffer]) -> None:
    if region.grow == 0 and not growing and region.grow_at == 0:
        return
    if (
        region.role != "state"
        or region.grow == 0
        or [(buffer.offset, buffer.size) for buffer in growing] != [(region.grow_at, region.grow)]
        or region.grow_at < region.size
        or region.grow_at + region.grow > region.span
    ):
        raise refusal(
            DOING,
            f"region {region.role} growing by {region.grow} bytes at {region.grow_at}, {len(growing)} growing buffers",
            "one growing buffer, in state, that is one unit, behind what does not grow",
            "M33",
        )


def check_distance(core: Core) -> None:
    """M36, in every region but scratch, where buffers share addresses by design."""
    places = sorted((b.role, b.offset, b.size, b.name) for b in core.buffers if b.role != "scratch")
    for (role, offset, size, name), (next_role, next_offset, _, next_name) in pairwise(places):
        if role == next_role and next_offset < offset + size + BUFFER_ALIGNMENT:
            raise refusal(
                DOING,
                f"{name} ending at {offset + size} and {next_name} beginning at {next_offset} of {role}",
                f"at least {BUFFER_ALIGNMENT} bytes between two buffers",
                "M36",
            )
