"""The memory plan: what is mapped, how many units fit, and refusals with numbers before anything is taken."""

from __future__ import annotations

import re

import msgspec
import pytest

from heliograph.core import manifest
from heliograph.core.format import region_base, region_span
from heliograph.errors import OutOfMemoryError, UsageError
from heliograph.runtime.plan import MARGIN_PART, NODE_BYTES, least_units, plan_memory, useful_units

MIB = 1 << 20
PAGE = 4096
UNIT = 64 * 1024
ZERO = "0" * 64


def region(role: str, size: int, grow: int = 0, grow_at: int = 0) -> manifest.Region:
    base = hex(region_base(0, role))
    return manifest.Region(
        role=role, base=base, span=region_span(role), size=size, grow=grow, grow_at=grow_at, initial=()
    )


def core(*, grows: bool = True, text: bool = True, units: int = 3) -> manifest.Core:
    """A core of 10 MiB of weights, 1 MiB of io, and state of 1,000 bytes that grows by 64 KiB."""
    language = manifest.Text(
        tokenizer=ZERO, chat_template=ZERO, bos=0, eos=(1,), vocabulary=100, context=256, block_tokens=16,
        concurrency=4, bos_text="", eos_text="",
    )  # fmt: skip
    state = region("state", 1000, UNIT, 4096) if grows else region("state", 1000)
    blob = manifest.Blob(digest=ZERO, size=0)
    case = manifest.Case(inputs=ZERO, outputs=ZERO, state=ZERO, units=units if grows else 0)
    test = manifest.SelfTest(graph=0, cases=(case, case))
    return manifest.Core(
        format=0, features=(), model="tiny", numerics="row-invariant", slot=0, buffers=(), modules=(), functions=(),
        target=manifest.Target(
            device="host", arch="generic", abi=1, ranks=1, processors=0, shared_optin=0, driver=0
        ),
        limits=(), regions=(region("weights", 10 * MIB), region("io", MIB), state),
        graphs=(manifest.Graph(name="decode/1", flags=0, nodes=100, edges=99),),
        entries=(), graphs_file=blob, choices=(), self_tests=(test,), text=language if text else None, blobs=(),
        weights=manifest.Weights(cap=MIB, size=10 * MIB, slices=(), tensors=()),
    )  # fmt: skip


FIXED = 11 * MIB + PAGE  # the grown part begins at 4096
NODES = 100 * NODE_BYTES


def test_one_graph_at_a_time_leaves_memory_for_the_largest_alone() -> None:
    graphs = tuple(manifest.Graph(name=f"decode/{nodes}", flags=0, nodes=nodes, edges=0) for nodes in (10, 100, 30))
    catalogue = msgspec.structs.replace(core(), graphs=graphs)
    assert plan_memory(catalogue, budget=1 << 30, granularity=PAGE).executables == 140 * NODE_BYTES
    assert plan_memory(catalogue, budget=1 << 30, granularity=PAGE, one_at_a_time=True).executables == NODES


def budget_for(units: int) -> int:
    """The smallest budget that holds so many units."""
    need = FIXED + NODES + units * UNIT
    budget = need * MARGIN_PART // (MARGIN_PART - 1)
    while budget - budget // MARGIN_PART < need:
        budget += 1
    return budget


def test_left_out_units_are_what_the_core_can_use_at_once() -> None:
    plan = plan_memory(core(), budget=1 << 30, granularity=PAGE)
    assert plan.units == useful_units(core()) == 4 * 16 + 1
    assert {each.role: each.mapped for each in plan.regions} == {
        "weights": 10 * MIB,
        "io": MIB,
        "state": 4096 + 65 * UNIT,
    }


def test_less_memory_gives_fewer_units() -> None:
    plan = plan_memory(core(), budget=budget_for(40), granularity=PAGE)
    assert plan.units == 40
    assert plan.needed + plan.margin <= plan.budget


def test_with_fill_all_that_fits_becomes_units() -> None:
    assert plan_memory(core(), budget=budget_for(500), granularity=PAGE, fill=True).units == 500


def test_one_context_fits_or_the_load_is_refused_with_the_numbers() -> None:
    least = least_units(core())
    assert least == 17
    assert plan_memory(core(), budget=budget_for(least), granularity=PAGE).units == least
    with pytest.raises(OutOfMemoryError) as caught:
        plan_memory(core(), budget=budget_for(least) - 1, granularity=PAGE)
    assert str(budget_for(least) - 1) in caught.value.found
    assert int(re.match(r"\d+", caught.value.required)[0]) > budget_for(least) - 1  # type: ignore[index]
    assert "units" not in caught.value.hint


def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        plan_memory(core(grows=False), budget=FIXED - PAGE, granularity=PAGE)
    assert "units" not in caught.value.hint
    assert plan_memory(core(grows=False), budget=budget_for(0), granularity=PAGE).units == 0


@pytest.mark.parametrize("units", [3, 8, 65, 1000])
def test_stated_units_are_mapped_if_they_fit(units: int) -> None:
    assert plan_memory(core(), budget=budget_for(units), granularity=PAGE, units=units).units == units
    with pytest.raises(OutOfMemoryError) as caught:
        plan_memory(core(), budget=budget_for(units) - 1, granularity=PAGE, units=units)
    assert "state fewer units" in caught.value.hint


@pytest.mark.parametrize("units", [0, 2, -1, 1 << 40])
def test_units_below_the_self_tests_or_beyond_the_span_cannot_be_meant(units: int) -> None:
    with pytest.raises(UsageError):
        plan_memory(core(), budget=1 << 60, granularity=PAGE, units=units)


def test_units_for_a_core_without_growth_are_refused() -> None:
    with pytest.raises(UsageError):
        plan_memory(core(grows=False), budget=1 << 30, granularity=PAGE, units=4)
    assert plan_memory(core(grows=False), budget=1 << 30, granularity=PAGE, units=0).units == 0


def test_a_core_without_text_gets_the_units_of_its_self_tests() -> None:
    assert plan_memory(core(text=False, units=5), budget=1 << 30, granularity=PAGE).units == 5


@pytest.mark.parametrize("units", [None, 17, 40, 41])
@pytest.mark.parametrize("fill", [False, True])
def test_whole_granules_fit_the_budget(units: int | None, fill: bool) -> None:
    """Growth, too, is mapped by granules: the last one counts whole, most of it where units begin with a granule."""
    regions = region("weights", 10 * MIB), region("io", MIB), region("state", 1000, UNIT, 2 * MIB)
    aligned = msgspec.structs.replace(core(), regions=regions)
    refusals, planned = [], []
    for budget in range(budget_for(17), budget_for(60) + 16 * MIB, 37 * PAGE):
        try:
            planned.append(plan_memory(aligned, budget=budget, granularity=2 * MIB, units=units, fill=fill))
        except OutOfMemoryError as error:
            refusals.append((budget, error.required))
    assert refusals
    assert planned
    for budget, required in refusals:
        assert int(required.split(":")[0]) > budget
    for plan in planned:
        assert plan.needed >= sum(each.mapped for each in plan.regions) + plan.executables
        assert plan.needed + plan.margin <= plan.budget


def test_mapped_sizes_are_whole_granules() -> None:
    odd = msgspec.structs.replace(core(), regions=(region("io", 5), region("state", 0)), self_tests=())
    plan = plan_memory(odd, budget=1 << 30, granularity=2 * MIB)
    assert [each.mapped for each in plan.regions] == [2 * MIB, 0]
