"""What a core needs of memory, and how many units of growth (KV blocks) fit. Arithmetic alone, nothing is taken."""

from __future__ import annotations

import msgspec

from heliograph.core.manifest import Core, Region
from heliograph.errors import CheckerError, OutOfMemoryError, UsageError

NODE_BYTES = 4096  # reserved for each node of every executable; the checker fails an export above it
PIECE = 2 << 20  # in which a CUDA driver takes memory for executables; several share one
ROUNDING = 16 << 20  # reserved for pieces that are not full, of all executables together
MARGIN_PART = 50  # 2 % of the budget stays free


class Overhead(msgspec.Struct, frozen=True):
    """What a device takes beside regions and executables, in bytes. The host takes nothing."""

    modules: int = 0  # kernel images
    local: int = 0  # local memory of the largest function times resident threads; printf and malloc memory
    staging: int = 0
    rounding: int = 0  # of the memory that executables share

    @property
    def total(self) -> int:
        return self.modules + self.local + self.staging + self.rounding


NO_OVERHEAD = Overhead()


class RegionPlan(msgspec.Struct, frozen=True):
    """The part of a region that gets memory: ``mapped`` bytes from its base."""

    role: str
    base: int
    span: int
    mapped: int


class MemoryPlan(msgspec.Struct, frozen=True):
    """All numbers of a load, known before the first byte of weights is copied. Sizes in bytes."""

    regions: tuple[RegionPlan, ...]
    units: int
    unit_bytes: int
    fixed: int  # regions without growth
    growth: int  # of units, or of the granules that are mapped for them if that is more
    executables: int
    margin: int
    budget: int
    overhead: Overhead = NO_OVERHEAD

    @property
    def needed(self) -> int:
        return self.fixed + self.growth + self.executables + self.overhead.total


def fixed_bytes(core: Core, granularity: int) -> int:
    """What the regions take before the first unit."""
    return sum(_round_up(_fixed_bytes(each), granularity) for each in core.regions)


def growing_region(core: Core) -> Region | None:
    """The one region that grows by units, if the core has one."""
    return next((region for region in core.regions if region.grow), None)


def tested_units(core: Core) -> int:
    """Units that the self-tests touch: fewer cannot be loaded."""
    return max((case.units for test in core.self_tests for case in test.cases), default=0)


def least_units(core: Core) -> int:
    """Units without which loading is pointless: one whole context and the padding block, and what self-tests need."""
    if core.text is None:
        return tested_units(core)
    return max(tested_units(core), _context_units(core) + 1)


def useful_units(core: Core) -> int:
    """Units that the core can use at once: a whole context for every row, and the padding block."""
    if core.text is None:
        return tested_units(core)
    return max(tested_units(core), _context_units(core) * core.text.concurrency + 1)


def _context_units(core: Core) -> int:
    return 0 if core.text is None else -(-core.text.context // core.text.block_tokens)


def plan_memory(
    core: Core,
    *,
    budget: int,
    granularity: int,
    units: int | None = None,
    fill: bool = False,
    one_at_a_time: bool = False,
    overhead: Overhead = NO_OVERHEAD,
) -> MemoryPlan:
    """Decides how much of each region is mapped.

    ``units`` states the growth; left out, it is what the core can use at once, or with ``fill`` all that fits.
    ``one_at_a_time``: the executables' share is that of the largest graph, not of all. Raises OutOfMemoryError with
    the numbers if the budget does not hold the plan, UsageError for units that cannot be meant.
    """
    region = growing_region(core)
    nodes = [graph.nodes for graph in core.graphs]
    plan = MemoryPlan(
        regions=(),
        units=0,
        unit_bytes=0 if region is None else region.grow,
        fixed=fixed_bytes(core, granularity),
        growth=0,
        executables=NODE_BYTES * (max(nodes, default=0) if one_at_a_time else sum(nodes)),
        margin=budget // MARGIN_PART,
        budget=budget,
        overhead=overhead,
    )
    room = budget - plan.needed - plan.margin
    if room < 0:
        raise _does_not_fit(core, plan, None)
    if region is None:
        count = _no_units(units)
    elif units is not None:
        count = _stated_units(core, region, units)
    else:
        count = min(room // region.grow, _units_in(region, room, granularity), _most_units(region))
        if not fill:
            count = min(count, useful_units(core))
        count = max(count, least_units(core))
    regions = tuple(
        RegionPlan(each.role, int(each.base, 16), each.span, _round_up(_extent(each, count), granularity))
        for each in core.regions
    )
    growth = max(count * plan.unit_bytes, sum(each.mapped for each in regions) - plan.fixed)
    plan = msgspec.structs.replace(plan, regions=regions, units=count, growth=growth)
    if growth > room:
        raise _does_not_fit(core, plan, units)
    return plan


def _round_up(size: int, unit: int) -> int:
    return (size + unit - 1) // unit * unit


def _fixed_bytes(region: Region) -> int:
    return max(region.size, region.grow_at) if region.grow else region.size


def _extent(region: Region, units: int) -> int:
    return max(region.size, region.grow_at + region.grow * units) if region.grow else region.size


def _units_in(region: Region, room: int, granularity: int) -> int:
    """Units that a region holds once ``room`` bytes come to its fixed part."""
    size = (_round_up(_fixed_bytes(region), granularity) + room) // granularity * granularity
    return (size - region.grow_at) // region.grow


def _most_units(region: Region) -> int:
    return (region.span - region.grow_at) // region.grow


def _no_units(units: int | None) -> int:
    if units:
        raise UsageError(
            "planning memory",
            found=f"{units} units for a core without growing state",
            required="no units",
            hint="leave units out for this core",
        )
    return 0


def _stated_units(core: Core, region: Region, units: int) -> int:
    least, most = max(1, tested_units(core)), _most_units(region)
    if not least <= units <= most:
        raise UsageError(
            "planning memory",
            found=f"{units} units of {region.role}",
            required=f"{least} (what the self-tests use) to {most} (what the region's {region.span} bytes hold)",
            hint="state another number of units, or leave it out",
        )
    return units


def _does_not_fit(core: Core, plan: MemoryPlan, stated: int | None) -> OutOfMemoryError:
    of = {"regions": plan.fixed, "executables": plan.executables, **msgspec.structs.asdict(plan.overhead)}
    parts = ", ".join(f"{size} for {what}" for what, size in of.items() if size or what in ("regions", "executables"))
    return OutOfMemoryError(
        f"planning memory for {core.model}",
        found=f"{plan.budget} bytes that may be used",
        required=f"{plan.needed + plan.margin}: {parts}, {plan.margin} margin, {plan.growth} for {plan.units} units of "
        f"{plan.unit_bytes}",
        hint="free memory or raise the limit" + (", or state fewer units" if stated else ""),
    )


def executable_limit(nodes: int, rounding: int) -> int:
    """The most bytes of the device that a load reserves for one executable.

    rounding: bytes that loads reserve for pieces that are not full (``Overhead.rounding``). One executable may leave
    one piece so.
    """
    return NODE_BYTES * nodes + min(PIECE, rounding)


def check_executables(nodes: int, device_bytes: int) -> None:
    """CheckerError if all executables together take more of the device than a load reserves for them."""
    limit = NODE_BYTES * nodes + ROUNDING
    if device_bytes > limit:
        raise takes_too_much("all executables", nodes, device_bytes, limit)


def takes_too_much(what: str, nodes: int, device_bytes: int, limit: int) -> CheckerError:
    rounding = limit - NODE_BYTES * nodes
    return CheckerError(
        f"measuring {what}",
        found=f"{device_bytes} bytes of the device for {nodes} nodes",
        required=f"at most {limit}: {NODE_BYTES} a node, as loads reserve, and {rounding} of rounding",
        hint="loads of this core would run out of memory after they are ready: report it",
    )
