"""The census finds exactly what was planted, and refuses what is nobody's; each refusal has a twin that passes."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from planted import (
    BUFFERS,
    EMPTY,
    FIRST,
    OWNED,
    SECOND,
    STEP,
    Driver,
    address,
    buffer,
    captures,
    copy,
    kernel_node,
    memset,
    nobody,
    plant,
    pointer,
    single,
)

from heliograph.capture.census import Census, compare_modes, exact_census, range_census
from heliograph.capture.classify import FROM, TO, NodeCensus
from heliograph.capture.owned import Owned
from heliograph.capture.words import RecordedNode, RecordedNodes, Words
from heliograph.core.format import SLOT_STRIDE, region_base, region_span
from heliograph.core.templates import Ref
from heliograph.errors import AddressMovedError, CaptureError, ForeignMemoryError, UsageError

DEVICE = 0x7F12_3400_0000
ELSEWHERE = 0x7F98_7600_0000
BUFFER = {buffer.name: index for index, buffer in enumerate(BUFFERS)}


def census(pair: tuple[Words, Words], known: Any = nobody, owned: Owned = OWNED) -> Census:
    return exact_census(*pair, owned, known)


def only(result: Census) -> NodeCensus:
    ((node,),) = result.graphs
    return node


# ---- exactly what was planted --------------------------------------------------------------------------------------
@given(st.integers(0, 1 << 32))
@example(0)
def test_what_is_found_is_exactly_what_was_planted(seed: int) -> None:
    planted = plant(random.Random(seed))
    result = census(captures(planted.node(), planted.node(second=True)))
    node = only(result)
    assert list(node.refs) == planted.refs
    assert {at for start, size in node.zeroed for at in range(start, start + size)} == planted.zeroed
    assert result.classes["number"] == planted.numbers
    assert result.zeroed_bytes == len(planted.zeroed)
    assert not result.doubts


def test_two_hundred_random_signatures_in_one_catalogue() -> None:
    planted = [plant(random.Random(seed)) for seed in range(200)]
    one = Words(FIRST, (RecordedNodes("g", tuple(p.node() for p in planted)),))
    two = Words(SECOND, (RecordedNodes("g", tuple(p.node(second=True) for p in planted)),))
    result = exact_census(one, two, OWNED, nobody)
    for node, expected in zip(result.graphs[0], planted, strict=True):
        assert list(node.refs) == expected.refs
        assert {at for start, size in node.zeroed for at in range(start, start + size)} == expected.zeroed
    assert result.classes["number"] == sum(p.numbers for p in planted)
    assert sum(result.classes[name] for name in ("weight", "constant", "persistent", "state", "scratch")) > 100


@given(st.integers(0, 1 << 32))
def test_zeros_for_left_overs_change_no_byte_of_a_number_or_pointer(seed: int) -> None:
    planted = plant(random.Random(seed))
    node = only(census(captures(planted.node(), planted.node(second=True))))
    kept = bytearray(planted.one)
    for at, size in node.zeroed:
        kept[at : at + size] = bytes(size)
    inside = {at for offset, size in planted.layout for at in range(offset, offset + size)}
    for at in inside - planted.zeroed:
        assert kept[at] == planted.one[at]


def test_both_captures_agree_whichever_comes_first() -> None:
    planted = plant(random.Random(7))
    one, two = captures(planted.node(), planted.node(second=True))
    backwards = exact_census(two, one, Owned(BUFFERS, SECOND), lambda word: None)
    assert only(backwards) == only(census((one, two)))


# ---- pointers ------------------------------------------------------------------------------------------------------
def test_a_pointer_inside_a_struct_at_an_odd_4_byte_offset_is_one_pointer() -> None:
    sides = [b"\1\2\3\4" + word.to_bytes(8, "little") + b"\5\6\7\x08" for word in pointer(3, 44)]
    pair = captures(*(kernel_node(side, ((0, 16),)) for side in sides))
    assert only(census(pair)).refs == (Ref(4, 3, 44),)


def test_neighbouring_pointers_are_two() -> None:
    assert only(census(single(pointer(0), pointer(5, 7), layout=((0, 16),)))).refs == (Ref(0, 0, 0), Ref(8, 5, 7))


def test_a_word_across_two_parameters_is_none() -> None:
    sides = [b"\0\0\0\0" + word.to_bytes(8, "little") for word in pointer(0)]
    pair = captures(*(kernel_node(side, ((0, 8), (8, 4))) for side in sides))
    result = only(census(pair))
    assert result.refs == ()
    assert result.zeroed  # the high half, which no parameter holds as part of a pointer


@pytest.mark.parametrize("index", range(len(BUFFERS)))
def test_one_past_the_end_belongs_to_its_own_buffer(index: int) -> None:
    size = BUFFERS[index].size
    assert only(census(single(pointer(index, size)))).refs == (Ref(0, index, size),)


def test_equal_words_stay_numbers_even_when_they_look_like_our_addresses() -> None:
    driver = Driver()
    result = census(single((address(0), address(0)), (address(9, 5),) * 2, (0, 0)), driver)
    assert only(result) == NodeCensus()
    assert result.classes["number"] == 3
    assert driver.asked == []


def test_a_number_that_differs_by_the_distance_but_lies_outside_the_slot_is_no_pointer() -> None:
    result = only(census(single((5, 5 + STEP))))
    assert result.refs == ()
    assert result.zeroed == ((5, 1),)


# ---- biased and ownerless pointers ---------------------------------------------------------------------------------
def test_a_pointer_below_its_buffer_is_told_by_what_its_op_was_given() -> None:
    target = BUFFER["weights/1"]
    words = [address(target, -64), address(target, -64, SECOND)]
    nodes = [kernel_node(word.to_bytes(8, "little"), ((0, 8),), given=(target,)) for word in words]
    result = census(captures(*nodes))
    (doubt,) = result.doubts
    assert only(result) == NodeCensus()
    assert (doubt.buffer, doubt.offset, doubt.at) == (target, -64, 0)


def test_one_that_falls_into_another_buffer_too_and_without_the_op_it_is_that_buffers() -> None:
    target, other = BUFFER["io/3"], BUFFER["io/0"]
    bias = address(other, 4000) - address(target)
    words = [address(target, bias), address(target, bias, SECOND)]
    layout = ((0, 8),)
    told = census(captures(*(kernel_node(word.to_bytes(8, "little"), layout, given=(target,)) for word in words)))
    assert only(told) == NodeCensus()
    assert (told.doubts[0].buffer, told.doubts[0].offset) == (target, bias)
    untold = census(captures(*(kernel_node(word.to_bytes(8, "little"), layout) for word in words)))
    assert only(untold).refs == (Ref(0, other, 4000),)


def test_in_the_padding_without_the_op_it_is_listed_as_ambiguous() -> None:
    result = census(single(pointer(BUFFER["weights/1"], -64)))
    assert only(result) == NodeCensus()
    assert len(result.doubts) == 1
    assert result.doubts[0].buffer == -1  # behind one, below another
    assert result.classes["ambiguous"] == 1
    assert any("ambiguous" in line and "weights/1" in line for line in result.lines())


def test_a_pointer_below_the_first_buffer_of_all_is_listed() -> None:
    result = census(single(pointer(0, -128)))
    assert (result.doubts[0].buffer, result.doubts[0].offset) == (0, -128)


def test_a_pointer_to_no_buffer_is_refused() -> None:
    far = region_base(FIRST, "weights") + (8 << 30)
    with pytest.raises(ForeignMemoryError, match="near none"):
        census(single((far, far + STEP)))
    assert only(census(single(pointer(0)))).refs


def test_inside_a_struct_it_may_be_a_left_over_and_is_listed() -> None:
    far = region_base(FIRST, "weights") + (8 << 30)
    result = census(single((far, far + STEP), (1, 1), layout=((0, 16),)))
    assert only(result) == NodeCensus()
    assert result.doubts[0].buffer == -1


def test_a_pointer_beyond_the_first_unit_of_growing_state_is_refused() -> None:
    growing = BUFFER["state/3"]
    with pytest.raises(ForeignMemoryError, match="first unit"):
        census(single(pointer(growing, BUFFERS[growing].size + 1)))
    assert only(census(single(pointer(growing, BUFFERS[growing].size)))).refs == (Ref(0, growing, 70000),)


# ---- scratch overlaps ----------------------------------------------------------------------------------------------
SCRATCH = [
    buffer("scratch/a/mm.0/out0/decode/8", "scratch", 0, 4096),
    buffer("scratch/a/add.0/out0/decode/8", "scratch", 0, 1024),
    buffer("scratch/b/mm.0/out0/decode/4", "scratch", 0, 512),
    buffer("scratch/b/add.0/out0/decode/4", "scratch", 512, 512),
]


@pytest.mark.parametrize(
    ("changes", "offset", "expected"),
    [
        ({}, 16, Ref(0, 1, 16)),  # of its graph, the smallest
        ({}, 2000, Ref(0, 0, 2000)),
        ({"path": "a/mm.0"}, 16, Ref(0, 0, 16)),  # named for the op
        ({"path": "a/mm.0", "given": (2,)}, 16, Ref(0, 2, 16)),  # given to it
        ({"given": (2,)}, 512, Ref(0, 2, 512)),  # one past the end of what it was given
        ({"given": (3,)}, 512, Ref(0, 3, 0)),
        ({"given": (2, 0)}, 512, Ref(0, 0, 512)),  # inside one that it was given, before one past the end
    ],
)
def test_of_several_buffers_the_nodes_own_counts(changes: dict[str, Any], offset: int, expected: Ref) -> None:
    base = region_base(FIRST, "scratch") + offset
    nodes = [kernel_node(word.to_bytes(8, "little"), ((0, 8),), **changes) for word in (base, base + STEP)]
    assert only(census(captures(*nodes), owned=Owned(SCRATCH, FIRST))).refs == (expected,)


@example([(0, 4), (0, 4)], 4)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=25), st.integers(-3, 90))
def test_lookup_equals_trying_every_buffer(places: list[tuple[int, int]], at: int) -> None:
    buffers = [
        buffer(f"scratch/p{i}/o/decode/1", "scratch", 256 * start, 256 * size) for i, (start, size) in enumerate(places)
    ]
    owned = Owned(buffers, FIRST)
    word = region_base(FIRST, "scratch") + 256 * at
    ranks = [(start + size == at, size, i) for i, (start, size) in enumerate(places) if start <= at <= start + size]
    if ranks:
        assert _found(owned, word) == (min(ranks)[2], 256 * (at - places[min(ranks)[2]][0]), "")
    else:
        assert _found(owned, word)[2]


def _found(owned: Owned, word: int) -> tuple[int, int, str]:
    pair = captures(*(kernel_node(w.to_bytes(8, "little"), ((0, 8),)) for w in (word, word + STEP)))
    result = census(pair, owned=owned)
    refs = only(result).refs
    return (refs[0].buffer, refs[0].offset, "") if refs else (-1, 0, result.doubts[0].why)


# ---- foreign memory ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["device memory of device 1", "pinned host memory", "managed memory"])
def test_a_foreign_pointer_that_differs_is_refused_with_kernel_parameter_and_offset(kind: str) -> None:
    driver = Driver((DEVICE, 4096, kind))
    pair = single((1, 1), (7, 7), (DEVICE + 16, ELSEWHERE), layout=((0, 8), (8, 16)))
    with pytest.raises(ForeignMemoryError) as error:
        census(pair, driver)
    for part in (kind, "_Z4gemm", "abababababab", "parameter 1", "at byte 8", "byte 16 of all", "model.py:12"):
        assert part in error.value.found
    assert "decode/8" in error.value.doing
    result = census(pair)  # nobody's: left-over bytes
    assert result.zeroed_bytes > 0
    assert all(at >= 16 and at + size <= 24 for at, size in only(result).zeroed)


def test_a_foreign_pointer_at_an_odd_offset_that_differs_is_refused() -> None:
    sides = [bytes(4) + word.to_bytes(8, "little") for word in (DEVICE, ELSEWHERE)]
    pair = captures(*(kernel_node(side, ((0, 12),)) for side in sides))
    with pytest.raises(ForeignMemoryError):
        census(pair, Driver((DEVICE, 1, "device memory")))
    assert only(census(pair)).refs == ()


def test_a_foreign_pointer_that_did_not_move_is_refused() -> None:
    pair = single((DEVICE, DEVICE))
    with pytest.raises(ForeignMemoryError, match="pinned"):
        census(pair, Driver((DEVICE, 1, "pinned host memory")))
    assert census(pair).classes["number"] == 1


def test_equal_words_that_no_compiler_would_align_so_are_listed() -> None:
    sides = bytes(4) + DEVICE.to_bytes(8, "little")
    result = census(captures(*[kernel_node(sides, ((0, 12),))] * 2), Driver((DEVICE, 1, "pinned host memory")))
    assert "pinned host memory" in result.doubts[0].why
    small = 7 << 32 | 0x2000  # two likely integers
    result = census(single((small, small)), Driver((7 << 32, 1 << 20, "device memory")))
    assert result.classes["ambiguous"] == 1


def test_a_word_between_two_pointers_is_not_asked_for() -> None:
    one, two = pointer(0), pointer(1)
    between = (one[0] >> 32) | (two[0] & 0xFFFF_FFFF) << 32
    result = census(single(one, two, layout=((0, 16),)), Driver((between, 1, "device memory")))
    assert len(only(result).refs) == 2


def test_a_pointer_to_a_module_global_is_refused_with_its_symbol() -> None:
    name = "global counters of image 12ab"
    with pytest.raises(ForeignMemoryError, match="counters") as error:
        census(single((DEVICE, ELSEWHERE)), Driver((DEVICE, 64, name)))
    assert "variable of a module" in error.value.hint
    assert census(single((DEVICE, ELSEWHERE)), Driver((DEVICE + 8, 64, name))).zeroed_bytes


def test_each_word_is_asked_about_once() -> None:
    driver = Driver()
    node = kernel_node(DEVICE.to_bytes(8, "little"), ((0, 8),))
    graphs = tuple(RecordedNodes(name, (node,) * 50) for name in ("a", "b"))
    exact_census(Words(FIRST, graphs), Words(SECOND, graphs), OWNED, driver)
    assert driver.asked == [DEVICE]


# ---- memsets and copies --------------------------------------------------------------------------------------------
def both(node: RecordedNode) -> tuple[Words, Words]:
    """A node and the same in the other slot, whose endpoints moved."""
    moved = {name: getattr(node, name) + STEP for name in ("address", "source") if getattr(node, name)}
    return captures(node, msgspec.structs.replace(node, **moved))


def test_endpoints_are_references() -> None:
    assert only(census(both(memset(address(4, 8))))).refs == (Ref(TO, 4, 8),)
    refs = only(census(both(copy(address(8), address(0, 16))))).refs
    assert refs == (Ref(TO, 8, 0), Ref(FROM, 0, 16))


@pytest.mark.parametrize("describe", [None, "pinned host memory", "managed memory"])
def test_a_copy_from_memory_that_is_not_ours_is_refused(describe: str | None) -> None:
    driver = Driver(*([(DEVICE, 64, describe)] if describe else []))
    for other in (DEVICE, ELSEWHERE, DEVICE + STEP):
        pair = captures(copy(address(8), DEVICE), copy(address(8) + STEP, other))
        with pytest.raises(ForeignMemoryError, match=describe or "does not know"):
            census(pair, driver)
    assert only(census(both(copy(address(8), address(0))), driver)).refs


def test_an_endpoint_that_is_the_same_address_in_both_is_refused() -> None:
    with pytest.raises(ForeignMemoryError):
        census(captures(memset(address(4)), memset(address(4))))


def test_bytes_that_run_over_the_end_of_a_buffer_are_refused() -> None:
    index = BUFFER["scratch/1"]
    with pytest.raises(ForeignMemoryError, match="101 bytes from byte 0"):
        census(both(memset(address(index), 101)))
    assert only(census(both(memset(address(index), 100)))).refs == (Ref(TO, index, 0),)
    assert only(census(both(memset(address(index, 99), 1)))).refs == (Ref(TO, index, 99),)
    with pytest.raises(ForeignMemoryError):
        census(both(memset(address(index, 100), 1)))


def test_an_empty_node_has_nothing() -> None:
    assert only(census(captures(EMPTY, EMPTY))) == NodeCensus()


# ---- not the same twice --------------------------------------------------------------------------------------------
NODE = kernel_node(bytes(8), ((0, 8),))


def kernel(**changes: Any) -> RecordedNode:
    assert NODE.kernel is not None
    return msgspec.structs.replace(NODE, kernel=msgspec.structs.replace(NODE.kernel, **changes))


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (kernel(function="_Z5other"), "_Z5other"),
        (kernel(image="cd" * 32), "cdcdcdcdcdcd"),
        (kernel(grid=(5, 2, 1)), "(5, 2, 1)"),
        (kernel(block=(64, 1, 1)), "(64, 1, 1)"),
        (kernel(shared=2048), "2048"),
        (kernel(params=bytes(12), layout=((0, 8), (8, 4))), "12 of parameters"),
        (memset(address(0)), "memset"),
        (EMPTY, "kind 5"),
    ],
)
def test_the_first_difference_is_named(other: RecordedNode, named: str) -> None:
    with pytest.raises(CaptureError, match="does not capture the same twice") as error:
        census(captures(NODE, other))
    assert named in error.value.found
    assert "node 0 of graph 'decode/8'" in error.value.found
    census(captures(NODE, NODE))


def test_another_value_of_a_memset_is_named() -> None:
    one, two = memset(address(0), form=(0, 1, 64, 1, 0)), memset(address(0) + STEP, form=(1, 1, 64, 1, 0))
    with pytest.raises(CaptureError, match="not capture the same"):
        census(captures(one, two))


@pytest.mark.parametrize(
    "graphs", [(), (RecordedNodes("decode/4", (NODE,)),), (RecordedNodes("decode/8", (NODE, NODE)),)]
)
def test_other_graphs_or_nodes_are_named(graphs: tuple[RecordedNodes, ...]) -> None:
    one, two = captures(NODE, NODE)
    for pair in ((one, Words(SECOND, graphs)), (Words(FIRST, graphs), two)):
        with pytest.raises(CaptureError, match="decode/8"):
            census(pair)


def test_a_pointer_that_leads_elsewhere_in_the_second_capture_is_refused() -> None:
    pair = single((address(0), address(3, 8, SECOND)))
    with pytest.raises(AddressMovedError) as error:
        census(pair)
    assert "'weights/0'" in error.value.found
    assert "8 bytes from the start of 'weights/3'" in error.value.found
    assert only(census(single((address(3, 8), address(3, 8, SECOND))))).refs
    with pytest.raises(AddressMovedError):
        census(captures(memset(address(0)), memset(address(2, 0, SECOND))))


def test_old_addresses_in_unused_places_of_a_struct_are_left_overs() -> None:
    found = only(census(single(pointer(0), (address(1), address(3, 8, SECOND)), layout=((0, 16),))))
    assert found.refs == (Ref(0, 0, 0),)
    assert found.zeroed, "the bytes that differ"
    assert all(at >= 8 and at + size <= 16 for at, size in found.zeroed)


@pytest.mark.parametrize("other", [0x55A3, 0x561B, 0x56A3, 0x551B])
def test_what_is_kept_of_a_stacks_address_does_not_depend_on_what_was_drawn(other: int) -> None:
    """A count beside four bytes of padding, in which the upper half of an address of the heap was left."""
    found = only(census(single((0x561C_0000_0007, other << 32 | 7), layout=((0, 8),))))
    assert found.zeroed == ((4, 4),)
    kept = only(census(single((0x0102_0000_0007, 0x0103_0000_0007), layout=((0, 8),))))
    assert kept.zeroed == ((4, 1),), "no address: the bytes that differ"


def test_slots_have_to_differ_and_to_fit() -> None:
    one, two = captures(NODE, NODE)
    with pytest.raises(UsageError, match="two slots"):
        census((one, one))
    with pytest.raises(UsageError, match="one slot"):
        census((two, one))


@pytest.mark.parametrize("layout", [(), ((0, 9),), ((0, 4), (2, 4)), ((4, 8),)])
def test_a_layout_that_does_not_fit_the_parameters_is_refused(layout: tuple[tuple[int, int], ...]) -> None:
    node = kernel_node(bytes(8), layout)
    with pytest.raises(CaptureError, match="layout"):
        census(captures(node, node))
    assert only(census(captures(NODE, NODE))) == NodeCensus()


def test_a_kernel_without_parameters_is_fine() -> None:
    node = kernel_node(b"", ())
    assert only(census(captures(node, node))) == NodeCensus()


# ---- range mode ----------------------------------------------------------------------------------------------------
def test_range_mode_takes_aligned_words_in_a_buffer_for_pointers() -> None:
    words, _ = single(pointer(3, 4), (5, 5), pointer(9))
    result = range_census(words, OWNED, nobody)
    assert only(result).refs == (Ref(0, 3, 4), Ref(16, 9, 0))
    assert result.classes["number"] == 1
    assert not result.exact


def test_range_mode_lists_what_is_in_no_buffer_or_not_aligned() -> None:
    far = region_base(FIRST, "weights") + (8 << 30)
    words, _ = single((far, 0), pointer(1, -8), (5120 << 32 | 7, 0), (4096 << 32 | 7, 0))
    result = range_census(words, OWNED, nobody)
    assert only(result).refs == ()
    assert [doubt.at for doubt in result.doubts] == [8]  # the others are no memory of ours: two integers each
    assert result.classes["number"] == 3
    node = kernel_node(bytes(4) + address(0).to_bytes(8, "little"), ((0, 12),))
    result = range_census(captures(node, node)[0], OWNED, nobody)
    assert only(result).refs == ()
    assert result.doubts[0].at == 4


def test_range_mode_lists_what_leads_beyond_the_first_unit_of_growing_state() -> None:
    growing = BUFFER["state/3"]
    words, _ = single(pointer(growing, 70001))
    assert not range_census(words, OWNED, nobody).doubts  # one unit: no memory of ours
    result = range_census(words, Owned(BUFFERS, FIRST, units=2), nobody)
    assert "first unit" in result.doubts[0].why


def test_range_mode_resolves_overlapping_words_to_one_pointer() -> None:
    high = address(0) >> 32
    node = kernel_node((high << 64 | address(0)).to_bytes(16, "little"), ((0, 16),))
    result = range_census(captures(node, node)[0], OWNED, nobody)
    assert only(result).refs == (Ref(0, 0, 0),)
    assert not result.doubts


def test_of_overlapping_words_range_mode_takes_the_aligned_one() -> None:
    word = (address(0) >> 32) + address(0)  # its low half is a high half of ours, too
    node = kernel_node(bytes(8) + word.to_bytes(8, "little"), ((0, 16),))
    result = range_census(captures(node, node)[0], OWNED, nobody)
    assert [ref.at for ref in only(result).refs] == [8]
    assert not result.doubts


def test_range_mode_refuses_foreign_memory() -> None:
    words, _ = single((DEVICE, DEVICE))
    with pytest.raises(ForeignMemoryError):
        range_census(words, OWNED, Driver((DEVICE, 1, "managed memory")))
    assert range_census(words, OWNED, nobody).classes["number"] == 1


def test_range_mode_and_endpoints() -> None:
    assert only(range_census(both(copy(address(8), address(0)))[0], OWNED, nobody)).refs == (Ref(0, 8, 0), Ref(8, 0, 0))
    with pytest.raises(ForeignMemoryError, match="plain host tensor"):
        range_census(both(copy(address(8), DEVICE))[0], OWNED, nobody)


def test_false_alarms_of_range_mode_are_counted() -> None:
    pair = single(pointer(0), (address(5), address(5)))
    exact, ranged = census(pair), range_census(pair[0], OWNED, nobody)
    assert compare_modes(exact.graphs, ranged.graphs) == exact.in_range == (1, 0)
    assert compare_modes(ranged.graphs, exact.graphs) == (0, 1)
    assert ranged.in_range is None


# ---- content -------------------------------------------------------------------------------------------------------
AT = 256  # in the region, of what is kept


def with_content(one: bytes, two: bytes, role: str = "constants") -> tuple[Words, Words]:
    return Words(FIRST, (), {role: ((AT, one),)}), Words(SECOND, (), {role: ((AT, two),)})


@given(st.integers(0, 1 << 32), st.sampled_from(["constants", "persistent", "scratch"]))
def test_pointers_in_content_are_found_exactly(seed: int, role: str) -> None:
    rng = random.Random(seed)
    one = bytearray(rng.randbytes(rng.randrange(20000)))
    two = bytearray(one)
    expected, changed, at = [], [], 0
    while at + 12 <= len(one):
        at += 4 * rng.choice((1, 2, 3, 700, 1023))
        if at + 8 > len(one):
            break
        if rng.random() < 0.3:
            two[at] ^= 0xFF
            changed.append((role, AT + at, 1))
            at += 4
            continue
        index = rng.randrange(len(BUFFERS))
        for side, word in zip((one, two), pointer(index, 1), strict=True):
            side[at : at + 8] = word.to_bytes(8, "little")
        expected.append((role, AT + at, index, 1))
        at += 8
    result = census(with_content(bytes(one), bytes(two), role))
    assert [(p.role, p.at, p.buffer, p.offset) for p in result.content] == expected
    assert list(result.unstable) == changed


def test_the_last_bytes_of_content_are_compared() -> None:
    result = census(with_content(b"0123456789", b"01234567x9"))
    assert result.unstable == (("constants", AT + 8, 1),)


@pytest.mark.parametrize("role", ["constants", "persistent", "scratch"])
def test_a_foreign_pointer_in_content_is_refused(role: str) -> None:
    pair = with_content(bytes(8) + DEVICE.to_bytes(8, "little"), bytes(8) + ELSEWHERE.to_bytes(8, "little"), role)
    with pytest.raises(ForeignMemoryError, match=f"at byte {AT + 8} ") as error:
        census(pair, Driver((DEVICE, 8, "pinned host memory")))
    assert f"'{role}/0'" in error.value.found
    assert census(pair).unstable


def test_content_that_points_elsewhere_or_has_another_length_is_refused() -> None:
    one, two = (word.to_bytes(8, "little") for word in (address(0), address(2, 0, SECOND)))
    with pytest.raises(AddressMovedError):
        census(with_content(one, two))
    with pytest.raises(CaptureError, match="8 bytes at 256 in the first and 0 bytes at 256 in the second"):
        census(with_content(one, b""))
    with pytest.raises(CaptureError, match="8 bytes at 256 in the first and nothing in the second"):
        census((with_content(one, one)[0], Words(SECOND, ())))
    assert census(with_content(one, pointer(0)[1].to_bytes(8, "little"))).content[0].buffer == 0


def test_range_mode_searches_content_for_words_that_lead_into_a_buffer() -> None:
    words = [address(0, 3), 77, region_base(FIRST, "io") + (9 << 30)]
    pair = with_content(b"".join(word.to_bytes(8, "little") for word in words) + b"\1\2\3", b"")
    result = range_census(pair[0], OWNED, nobody)
    assert [(p.at, p.buffer, p.offset) for p in result.content] == [(AT, 0, 3)]


# ---- what is printed -----------------------------------------------------------------------------------------------
def test_lines_tell_counts_costs_and_a_bounded_number_of_ambiguous_words() -> None:
    odd = address(1, -64)
    pair = single(*[(odd, odd + STEP)] * 30, pointer(0), layout=((0, 248),))
    lines = census(pair).lines()
    assert "exact" in lines[0]
    assert "weight 1" in lines[1]
    assert lines[2] == "  range mode alone: 0 false alarms, 0 pointers missed"
    assert not any("false" in line for line in range_census(pair[0], OWNED, nobody).lines())
    assert lines[-1] == "  ambiguous: 10 more"


def test_slots_are_far_enough_apart_that_a_pointer_differs_in_its_high_half_alone() -> None:
    assert SLOT_STRIDE % (1 << 32) == 0
    assert all(region_span(role) < SLOT_STRIDE for role in ("weights", "state"))
