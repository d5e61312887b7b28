"""The Triton kernels: values, padding, what they leave alone, and the same bits in every bucket. In CI they run in
Triton's interpreter, on fewer examples since it takes milliseconds a program; on a CUDA device compiled, marked gpu."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor

from heliograph.errors import UnsupportedOpError
from heliograph.ops import linear, paged_attention, rms_norm, rope, silu_mul
from heliograph.ops.launch import LOWERINGS
from heliograph.ops.linear.reference import dequantise
from heliograph.ops.sample import LOGPROB_ERROR, NAMES
from heliograph.ops.sample.reference import Settings, uniform
from heliograph.ops.triton_ops import OPS

from . import harness
from .harness import examples, reference, same_bytes
from .packed import generator, random_weight
from .sampling import Batch
from .test_attention import LAYER, Case, same_half
from .test_real import arguments, untouched
from .test_rows import SEEDS, strided
from .test_sample import draw_is_close, last_token, random_batch
from .triton_device import DEVICE, INTERPRETED, call

pytestmark = [] if INTERPRETED else [pytest.mark.gpu]
BUCKETS = (1, 2, 3, 8) if INTERPRETED else harness.BUCKETS
PLAIN = ("f32", "bf16", "f16")
ROW_OPS = (
    "linear bf16", "embedding", "rms_norm", "rms_norm of heads", "rope", "silu_mul", "add", "paged_attention", "sample"
)  # fmt: skip


def few(interpreted: int, compiled: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return examples(interpreted if INTERPRETED else compiled)


# ---- values --------------------------------------------------------------------------------------------------------
@few(20, 80)
@given(
    layout=st.sampled_from(PLAIN), rows=st.integers(0, 20), depth=st.integers(0, 300), outputs=st.integers(1, 40),
    bias=st.booleans(), gap=st.integers(0, 3), seed=SEEDS,
)  # fmt: skip
def test_linear_is_within_its_tolerance(
    layout: str, rows: int, depth: int, outputs: int, bias: bool, gap: int, seed: int
) -> None:
    source = generator(seed)
    x = torch.randn(rows, depth + gap, generator=source)[:, :depth]
    weight = random_weight(layout, outputs, depth, source)
    b = torch.randn(outputs, generator=source) if bias else None
    got = call("linear", x, weight, b, layout, outputs).out
    exact = dequantise(weight, layout).double()
    terms = x.double().abs() @ exact.abs().T + (0 if b is None else b.abs())
    want = x.double() @ exact.T + (0 if b is None else b)
    assert ((got - want).abs() <= linear.ERROR * terms).all()


@few(12, 40)
@given(
    layout=st.sampled_from(PLAIN), tokens=st.integers(0, 20), dim=st.integers(0, 1200), entries=st.integers(1, 30),
    seed=SEEDS,
)  # fmt: skip
def test_embedding_gives_the_weights_exactly(layout: str, tokens: int, dim: int, entries: int, seed: int) -> None:
    source = generator(seed)
    weight = random_weight(layout, entries, dim, source)
    ids = torch.randint(-2, entries + 2, (tokens,), generator=source, dtype=torch.int32)
    ids[:1] = 2**31 - 1
    (want,), _ = reference("embedding", ids, weight, layout, dim)
    assert same_bytes(call("embedding", ids, weight, layout, dim).out, want)


@few(15, 40)
@given(
    rows=st.integers(0, 9), heads=st.integers(1, 3), dim=st.integers(1, 1100), gaps=st.tuples(*[st.integers(0, 2)] * 3),
    flat=st.booleans(), seed=SEEDS,
)  # fmt: skip
def test_rms_norm_is_within_its_tolerance(
    rows: int, heads: int, dim: int, gaps: tuple[int, int, int], flat: bool, seed: int
) -> None:
    source = generator(seed)
    x = strided((rows, dim), gaps[1:], source) if flat else strided((rows, heads, dim), gaps, source)
    weight = torch.randn(dim, generator=source)
    got = call("rms_norm", x, weight, 1e-5).out
    wide = x.double()
    want = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    assert ((got - want).abs() <= rms_norm.RELATIVE * want.abs()).all()


@few(15, 60)
@given(
    tokens=st.integers(0, 6), heads=st.integers(1, 3), dim=st.integers(1, 70), rest=st.integers(0, 5),
    interleaved=st.booleans(), gaps=st.tuples(*[st.integers(0, 2)] * 3), seed=SEEDS,
)  # fmt: skip
def test_rope_is_within_its_tolerance(
    tokens: int, heads: int, dim: int, rest: int, interleaved: bool, gaps: tuple[int, int, int], seed: int
) -> None:
    source = generator(seed)
    x = strided((tokens, heads, dim), gaps, source)
    pairs = max(0, dim // 2 - rest)
    positions = torch.randint(-1, 200_000, (tokens,), generator=source, dtype=torch.int32)
    inv_freq = torch.rand(pairs, generator=source)
    got = call("rope", x, positions, inv_freq, interleaved).out
    angles = (positions.float()[:, None] * inv_freq).double()[:, None, :]
    cos, sin = angles.cos(), angles.sin()
    a, b = (x[..., 0 : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]) if interleaved else x[..., : 2 * pairs].chunk(2, -1)
    first, second = a.double() * cos - b.double() * sin, b.double() * cos + a.double() * sin
    length = (a.double() ** 2 + b.double() ** 2).sqrt()

    def arranged(left: Tensor, right: Tensor) -> Tensor:
        return torch.stack((left, right), -1).flatten(-2) if interleaved else torch.cat((left, right), -1)

    assert ((got[..., : 2 * pairs] - arranged(first, second)).abs() <= rope.ERROR * arranged(length, length)).all()
    assert same_bytes(got[..., 2 * pairs :], x[..., 2 * pairs :])


@few(12, 40)
@given(rows=st.integers(0, 9), columns=st.integers(0, 2100), gap=st.integers(0, 3), seed=SEEDS)
def test_silu_mul_and_add_hold_for_all_shapes(rows: int, columns: int, gap: int, seed: int) -> None:
    source = generator(seed)
    x, y = strided((rows, columns), (0, gap), source) * 10, torch.randn((rows, columns), generator=source)
    assert same_bytes(call("add", x, y).out, x + y)
    got = call("silu_mul", x, y).out
    want = x.double() / (1 + (-x.double()).exp()) * y
    assert ((got - want).abs() <= silu_mul.RELATIVE * want.abs() + 1e-37).all()


def test_silu_mul_holds_at_the_ends_of_the_range() -> None:
    x = torch.tensor([[-200.0, -104.0, -90.0, -88.0, -1e-30, 0.0, 1e-30, 88.0, 90.0, 3e38]])
    got, wide = call("silu_mul", x, torch.ones_like(x)).out, x.double()
    assert ((got - wide / (1 + (-wide).exp())).abs() <= silu_mul.RELATIVE * wide.abs()).all()


@few(10, 30)
@given(rows=st.integers(0, 9), columns=st.integers(0, 70), count=st.integers(0, 12), gap=st.integers(0, 2), seed=SEEDS)
def test_gather_rows_copies_and_gives_zeros_outside(rows: int, columns: int, count: int, gap: int, seed: int) -> None:
    source = generator(seed)
    x = strided((rows, columns), (0, gap), source)
    index = torch.randint(-2, rows + 2, (count,), generator=source, dtype=torch.int32)
    (want,), _ = reference("gather_rows", x, index)
    assert same_bytes(call("gather_rows", x, index).out, want)


@few(10, 30)
@given(count=st.integers(0, 600), slots=st.integers(1, 6), context=st.integers(1, 500), seed=SEEDS)
def test_resolve_ids_and_history_store_are_exact(count: int, slots: int, context: int, seed: int) -> None:
    source = generator(seed)

    def whole(low: int, high: int, *size: int) -> Tensor:
        return torch.randint(low, high, size, generator=source, dtype=torch.int32)

    ids, row_slots, last = whole(-2, 50, count), whole(-2, slots + 2, count), whole(0, 9, slots)
    (want,), _ = reference("resolve_ids", ids, row_slots, last)
    assert same_bytes(call("resolve_ids", ids, row_slots, last).out, want)
    places = torch.randperm((slots + 2) * (context + 2), generator=source)[:count]  # each at most once
    row_slots, positions = (places // (context + 2) - 1).int(), (places % (context + 2) - 1).int()
    ids, history = whole(0, 50, len(places)), whole(-5, 0, slots, context)
    _, after = reference("history_store", ids, row_slots, positions, history)
    assert same_bytes(call("history_store", ids, row_slots, positions, history).args[3], after[3])


# ---- keys and values -----------------------------------------------------------------------------------------------
CASES = st.builds(
    lambda group, kv_heads, dim, block_tokens, width: Case(group * kv_heads, kv_heads, dim, block_tokens, width),
    st.sampled_from([1, 2, 3, 4, 8]), st.integers(1, 3), st.sampled_from([1, 8, 15, 16, 17, 64]),
    st.sampled_from([1, 3, 8, 16, 32]), st.integers(1, 4),
)  # fmt: skip


@few(20, 60)
@given(case=CASES, tokens=st.integers(0, 12), gap=st.integers(0, 2), seed=SEEDS)
def test_kv_store_writes_exactly_its_places(case: Case, tokens: int, gap: int, seed: int) -> None:
    source = generator(seed)
    tables = case.tables(source)
    tables[0, -1] = -1
    places = torch.randperm(5 * (case.context + 3), generator=source)[:tokens]  # each at most once
    rows, positions = (places // (case.context + 3) - 1).int(), (places % (case.context + 3) - 1).int()
    k = torch.randn(len(places), case.kv_heads, case.dim + gap, generator=source)[..., : case.dim]
    v = torch.randn(case.kv_heads, len(places), case.dim, generator=source).transpose(0, 1) * 100_000
    args = (k, v, case.cache(0.0), LAYER, tables, rows, positions)
    _, after = reference("kv_store", *args)
    assert same_half(call("kv_store", *args).args[2], after[2])


def filled(case: Case, tables: Tensor, lengths: list[int], source: Generator) -> Tensor:
    """A cache with random keys and values of each sequence, NaN elsewhere."""
    rows = torch.cat([torch.full((n,), i) for i, n in enumerate(lengths)]).int()
    positions = torch.cat([torch.arange(n) for n in lengths]).int()
    k, v = (torch.randn(len(rows), case.kv_heads, case.dim, generator=source) for _ in range(2))
    _, after = reference("kv_store", k, v, case.cache(), LAYER, tables, rows, positions)
    assert isinstance(after[2], Tensor)
    return after[2]


@few(12, 80)
@given(case=CASES, tokens=st.integers(0, 6), gap=st.integers(0, 2), seed=SEEDS)
def test_attention_is_within_its_tolerance(case: Case, tokens: int, gap: int, seed: int) -> None:
    source = generator(seed)
    tables = case.tables(source)
    lengths = torch.randint(1, case.context + 1, (case.sequences,), generator=source).tolist()
    cache = filled(case, tables, lengths, source)
    rows = torch.randint(0, case.sequences, (tokens,), generator=source).int()
    positions = (torch.rand(tokens, generator=source) * torch.tensor(lengths)[rows.long()]).int()
    positions[1:2], rows[2:3], positions[3:4] = -1, case.sequences, case.context
    q = torch.randn(tokens, case.heads, case.dim + gap, generator=source)[..., : case.dim]
    args = (q, cache, LAYER, tables, rows, positions, case.dim**-0.5)
    got = call("paged_attention", *args).out
    (want,), _ = reference("paged_attention", *args)
    assert ((got - want).abs() <= paged_attention.ERROR * cache.nan_to_num().float().abs().max()).all()
    assert (got[1:4] == 0).all()


def test_chunks_of_a_prompt_and_single_steps_give_the_same_bits(seed: int) -> None:
    source = generator(seed)
    case, length = (Case(2, 1, 32, 16, 3), 35) if INTERPRETED else (Case(6, 2, 32, 16, 4), 53)
    tables = case.tables(source)
    q = torch.randn(length, case.heads, case.dim, generator=source)
    k, v = (torch.randn(length, case.kv_heads, case.dim, generator=source) for _ in range(2))
    results = []
    for sequence, sizes in enumerate(([length], [16, 1, length - 17], [1] * length)):
        cache, outs, at = case.cache(), [], 0
        for size in sizes:
            part = slice(at, at + size)
            rows, positions = torch.full((size,), sequence).int(), torch.arange(at, at + size).int()
            stored = call("kv_store", k[part], v[part], cache, LAYER, tables, rows, positions).args[2]
            assert isinstance(stored, Tensor)
            cache, at = stored, at + size
            outs.append(call("paged_attention", q[part], cache, LAYER, tables, rows, positions, 0.2).out)
        results.append(torch.cat(outs))
    assert same_bytes(results[1], results[0])
    assert same_bytes(results[2], results[0])


# ---- sample --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("number", range(3 if INTERPRETED else 100))
def test_sample_does_what_the_reference_does(number: int) -> None:
    source = generator(number)
    rows, vocabulary = (4, (1, 33, 130)[number]) if INTERPRETED else (number % 10, 1 + 71 * number)
    batch = random_batch(rows, vocabulary, source)
    got = call("sample", *batch.args())
    (ids, logprobs, logprob_ids), after = reference("sample", *batch.args())
    for r in (got.outs[0] != ids).nonzero().flatten().tolist():
        assert draw_is_close(batch, r, int(got.outs[0][r]))
    equal = got.outs[0] == ids
    assert ((got.outs[1] - logprobs).abs() <= LOGPROB_ERROR)[equal].all()
    assert got.outs[2].equal(logprob_ids)
    slots = batch.named()["slots"]
    wanted = batch.named()["last_token"].clone()
    wanted[slots[slots >= 0].long()] = got.outs[0][slots >= 0]
    assert last_token(got).equal(wanted)
    history = after[NAMES.index("history")]
    assert isinstance(history, Tensor)
    assert history.equal(batch.named()["history"])


def test_sample_chooses_the_token_that_the_host_chooses(seed: int) -> None:
    """Not only near it: masses have the host's bits."""
    rows, vocabulary = (4, 200) if INTERPRETED else (64, 49_152)
    args = random_batch(rows, vocabulary, generator(seed)).args()
    assert call("sample", *args).outs[0].equal(harness.call("sample", *args).outs[0])


def test_sample_draws_what_philox_says(seed: int) -> None:
    source, rows = generator(seed), 6 if INTERPRETED else 300
    seeds = torch.randint(-(2**63), 2**63 - 1, (rows,), generator=source)
    seeds[:3] = torch.tensor([0, -1, 1 << 40])
    positions = torch.randint(0, 2**31 - 1, (rows,), generator=source, dtype=torch.int32)
    batch = Batch(torch.zeros(rows, 4096), fields={"seed": seeds, "sample_position": positions})
    ids = call("sample", *batch.args()).outs[0]
    assert ids.tolist() == [int(uniform(int(s), int(p)) * 4096) for s, p in zip(seeds, positions, strict=True)]


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    logits = torch.zeros(4, 5000)
    logits[0, [7, 30, 4999]] = 2.0
    logits[1, :] = -5.0
    logits[2, [4500, 4300]] = torch.inf
    logits[3, 20:] = torch.nan
    logits[3, [3, 9]] = 1.0
    assert call("sample", *Batch(logits, Settings(temperature=0.0)).args()).outs[0].tolist() == [7, 0, 4300, 3]


def test_nothing_allowed_gives_the_lowest_id() -> None:
    batch = Batch(torch.randn(2, 33), fields={"mask_index": torch.tensor([0, 0]).int()})
    assert call("sample", *batch.args()).outs[0].tolist() == [0, 0]


def test_seed_and_position_alone_decide(seed: int) -> None:
    """One request in a row of every bucket, beside strangers and in any slot: one token, the same logprobs."""
    source = generator(seed)
    alone = random_batch(1, 300 if INTERPRETED else 5_000, source)
    alone.fields |= {"slots": torch.tensor([0]).int(), "temperature": torch.tensor([0.9])}
    want, named = call("sample", *alone.args()), alone.named()
    for bucket in (1, 3) if INTERPRETED else BUCKETS[:8]:
        place = bucket // 2
        batch = random_batch(bucket, alone.logits.shape[1], source)
        batch.logits[place] = alone.logits[0]
        for name, value in batch.fields.items():
            if name not in ("slots", "history", "last_token", "masks"):
                value[place] = named[name][0]
        batch.fields["masks"] = named["masks"]
        batch.fields["slots"][place] = place
        batch.fields["history"][place] = named["history"][0]
        for a, b in zip(call("sample", *batch.args()).outs, want.outs, strict=True):
            assert same_bytes(a[place : place + 1], b)


# ---- padding -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("op", ROW_OPS)
@pytest.mark.parametrize("rows", [1, 5] if INTERPRETED else [1, 5, 16, 61, 130])
def test_real_rows_are_computed_and_no_other(op: str, rows: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    name, args = op.partition(" ")[0], arguments(op, rows, generator(seed))
    if op == "embedding":
        args = (args[0], random_weight("bf16", 9, 64, generator(seed)), "bf16", 64)
    every = call(name, *args, *([None] if name == "sample" else [])).outs
    empty = torch.empty

    def marked(*shape: object, **settings: object) -> Tensor:
        made: Tensor = empty(*shape, **settings)
        if made.numel() and made.device.type == DEVICE:
            made.view(torch.uint8).fill_(0xFF)
        return made

    for stated in {0, rows // 2, rows + 3} if INTERPRETED else {-1, 0, 1, rows // 2, rows - 1, rows, rows + 3}:
        real = min(max(stated, 0), rows)
        monkeypatch.setattr(torch, "empty", marked)
        outs = call(name, *args, torch.tensor([stated], dtype=torch.int32)).outs
        monkeypatch.setattr(torch, "empty", empty)
        assert all(same_bytes(out[:real], all_rows[:real]) for out, all_rows in zip(outs, every, strict=True))
        if name == "sample":
            assert [bool((out[real:] == empty_row).all()) for out, empty_row in zip(outs, (-1, 0, -1), strict=True)]
        else:
            assert all(untouched(out[real:]) for out in outs)


def test_padding_is_cleared_and_no_real_row(seed: int) -> None:
    x = torch.randn(11, 1037, generator=generator(seed))
    for stated in (-1, 0, 1, 10, 11, 12):
        real = torch.tensor([stated]).int()
        got, (_, (want, _)) = call("clear_padding", x, real).args[0], reference("clear_padding", x, real)
        assert same_bytes(got, want)


# ---- the same bits in every bucket ---------------------------------------------------------------------------------
Args = Callable[[Tensor], tuple[object, ...]]


def _cases(source: Generator) -> dict[str, Args]:
    """For each op: its arguments for a choice of rows."""
    n = max(BUCKETS)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source)

    count = 3 if INTERPRETED else 9
    x, y, heads, weight = numbers(n, 1536), numbers(n, 1536), numbers(n, count, 64), numbers(1536)
    positions = torch.randint(0, 100_000, (n,), generator=source, dtype=torch.int32)
    index = torch.randint(0, n, (n,), generator=source, dtype=torch.int32)
    matrices = {layout: random_weight(layout, 37, 1536, source) for layout in PLAIN}
    bias, frequencies, head_weight = numbers(37), torch.rand(24, generator=source), numbers(64)
    case = Case(count, count // 3, 64, 16, 4)
    tables = case.tables(source)
    cache = filled(case, tables, [case.context] * case.sequences, source)
    rows = torch.randint(0, case.sequences, (n,), generator=source).int()
    at = torch.randint(0, case.context, (n,), generator=source).int()
    return {
        **{f"linear {name}": lambda p, name=name, w=w: (x[p], w, bias, name, 37) for name, w in matrices.items()},
        "rms_norm": lambda p: (x[p], weight, 1e-6),
        "rms_norm of heads": lambda p: (heads[p], head_weight, 1e-6),
        "rope": lambda p: (heads[p], positions[p], frequencies, False),
        "rope interleaved": lambda p: (heads[p], positions[p], frequencies, True),
        "silu_mul": lambda p: (x[p], y[p]),
        "add": lambda p: (x[p], y[p]),
        "gather_rows": lambda p: (x, index[p]),
        "paged_attention": lambda p: (heads[p], cache, LAYER, tables, rows[p], at[p], 0.1),
    }  # fmt: skip


@pytest.mark.parametrize("case", list(_cases(generator(0))))
def test_row_has_the_same_bits_in_every_bucket(case: str, seed: int) -> None:
    source = generator(seed)
    args = _cases(source)[case]
    op = case.split(" ")[0]
    whole = call(op, *args(torch.arange(max(BUCKETS)))).out
    for bucket in BUCKETS:
        picked = torch.randperm(max(BUCKETS), generator=source)[:bucket]
        real = torch.tensor([bucket], dtype=torch.int32)
        assert same_bytes(call(op, *args(picked)).out, whole[picked])
        if op != "gather_rows":
            assert same_bytes(call(op, *args(picked), real).out, whole[picked])


# ---- refusals ------------------------------------------------------------------------------------------------------
def test_packed_weights_are_refused_with_what_to_do() -> None:
    x, weight = torch.ones(2, 64), torch.zeros(4, 40, dtype=torch.uint8)
    with pytest.raises(UnsupportedOpError) as refused:
        call("linear", x, weight, None, "q4_1", 4)
    assert "dequantised" in refused.value.hint


def test_what_the_host_refuses_is_refused() -> None:
    x, y = torch.ones(4, 8), torch.ones(4, 16)
    with pytest.raises(UnsupportedOpError) as refused:
        call("add", x, y[:, ::2])
    assert refused.value.required == "y rows without gaps"


# ---- 64 bits -------------------------------------------------------------------------------------------------------
@pytest.mark.gpu
def test_last_blocks_of_a_cache_above_4_gib_give_the_bits_of_the_first(seed: int) -> None:
    """12 GiB: offsets beyond 2^32 elements, and block ids at the end of the pool."""
    source, case = generator(seed), Case(4, 2, 64, 16, 3, sequences=1)
    stride = 2 * 2 * case.kv_heads * case.block_tokens * case.dim
    blocks = (12 << 30) // (2 * stride)
    cache = torch.zeros(blocks, 2, 2, case.kv_heads, case.block_tokens, case.dim, dtype=torch.float16, device="cuda")
    k, v = (torch.randn(40, case.kv_heads, case.dim, generator=source).cuda() for _ in range(2))
    q = torch.randn(20, case.heads, case.dim, generator=source).cuda()
    rows, positions = torch.zeros(40).int().cuda(), torch.arange(40).int().cuda()
    ops, results = torch.ops.heliograph, []
    for used in ([1, 2, 3], [blocks - 3, blocks - 2, blocks - 1], [(1 << 31) // stride, (1 << 32) // stride, 9]):
        tables = torch.tensor([used]).int().cuda()
        ops.kv_store(k, v, cache, LAYER, tables, rows, positions)
        results.append(ops.paged_attention(q, cache, LAYER, tables, rows[20:], positions[20:], 0.1).cpu())
    assert same_bytes(results[1], results[0])
    assert same_bytes(results[2], results[0])
    touched = cache.flatten(1).any(1).nonzero().flatten().tolist()
    assert touched == sorted({1, 2, 3, 9, (1 << 31) // stride, (1 << 32) // stride, blocks - 3, blocks - 2, blocks - 1})


@pytest.mark.gpu
def test_rows_beyond_two_billion_elements_are_reached(seed: int) -> None:
    rows, columns = 70_000, 49_152
    x = torch.zeros(rows, columns, device="cuda")
    x[-1] = torch.arange(columns)
    last = torch.tensor([rows - 1, 0], dtype=torch.int32, device="cuda")
    assert torch.ops.heliograph.gather_rows(x, last)[0].equal(x[-1])
    ids = torch.tensor([rows - 1], dtype=torch.int32, device="cuda")
    assert torch.ops.heliograph.embedding(ids, x, "f32", columns)[0].equal(x[-1])
    torch.ops.heliograph.clear_padding(x, last[:1])
    assert not x[-1].any()


def test_every_op_has_a_triton_kernel() -> None:
    lowered = {name.split(".")[1] for name in LOWERINGS if name.startswith("heliograph.")}
    assert lowered == set(OPS)


def test_kernel_files_hold_no_tuning() -> None:
    folder = Path(linear.__file__).parent.parent
    for path in folder.glob("*/triton.py"):
        assert "autotune" not in path.read_text(), path
