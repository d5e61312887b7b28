"""kv_store and paged_attention: values, padding, chunks, sharing of heads, and blocks at the end of a 1 TiB cache."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor

from heliograph.errors import UnsupportedOpError
from heliograph.ops import paged_attention
from heliograph.ops.launch import LOWERINGS, View

from .compiled import KERNEL_SOURCES
from .harness import BUCKETS, KernelRecorder, call, examples, reference, same_bytes, shuffled, singles_backwards, whole
from .memory import Arena, Guarded, arena
from .packed import generator

LAYER = 1


@dataclass(frozen=True, slots=True)
class Case:
    """A cache of two layers with ``sequences`` of up to ``width`` blocks, in random order; block 0 is never used."""

    heads: int
    kv_heads: int
    dim: int
    block_tokens: int
    width: int
    sequences: int = 3

    def tables(self, source: Generator) -> Tensor:
        order = torch.randperm(self.sequences * self.width, generator=source) + 1
        return order.reshape(self.sequences, self.width).int()

    def cache(self, fill: float = float("nan")) -> Tensor:
        """Full of what must never be read."""
        blocks = 1 + self.sequences * self.width
        return torch.full((blocks, 2, 2, self.kv_heads, self.block_tokens, self.dim), fill, dtype=torch.float16)

    @property
    def context(self) -> int:
        return self.width * self.block_tokens

    def filled(self, tables: Tensor, lengths: list[int], source: Generator, level: str) -> Tensor:
        """The cache after kv_store of random keys and values of each sequence."""
        rows = torch.cat([torch.full((n,), i) for i, n in enumerate(lengths)]).int()
        positions = torch.cat([torch.arange(n) for n in lengths]).int()
        k = torch.randn(len(rows), self.kv_heads, self.dim, generator=source)
        v = torch.randn(len(rows), self.kv_heads, self.dim, generator=source)
        cache = call("kv_store", k, v, self.cache(), LAYER, tables, rows, positions, level=level).args[2]
        assert isinstance(cache, Tensor)
        return cache


CASES = st.builds(
    lambda group, kv_heads, dim, block_tokens, width: Case(group * kv_heads, kv_heads, dim, block_tokens, width),
    st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8]), st.integers(1, 3), st.sampled_from([1, 8, 15, 16, 17, 32, 64]),
    st.sampled_from([1, 3, 8, 16, 32]), st.integers(1, 4),
)  # fmt: skip


def same_half(a: object, b: object) -> bool:
    return isinstance(a, Tensor) and isinstance(b, Tensor) and a.view(torch.int16).equal(b.view(torch.int16))


@examples(40)
@given(case=CASES, tokens=st.integers(0, 12), gap=st.integers(0, 2), seed=st.integers(0, 2**31))
def test_kv_store_writes_exactly_its_places(level: str, case: Case, tokens: int, gap: int, seed: int) -> None:
    source = generator(seed)
    tables = case.tables(source)
    tables[0, -1] = -1
    places = torch.randperm(5 * (case.context + 3), generator=source)[:tokens]  # each at most once
    rows, positions = (places // (case.context + 3) - 1).int(), (places % (case.context + 3) - 1).int()
    k = torch.randn(len(places), case.kv_heads, case.dim + gap, generator=source)[..., : case.dim]
    v = torch.randn(case.kv_heads, len(places), case.dim, generator=source).transpose(0, 1) * 100_000
    args = (k, v, case.cache(0.0), LAYER, tables, rows, positions)
    got = call("kv_store", *args, level=level, split=singles_backwards).args[2]
    _, after = reference("kv_store", *args)
    assert same_half(got, after[2])


@examples(50)
@given(case=CASES, tokens=st.integers(0, 8), gap=st.integers(0, 2), seed=st.integers(0, 2**31))
def test_attention_is_within_its_tolerance(level: str, case: Case, tokens: int, gap: int, seed: int) -> None:
    source = generator(seed)
    tables = case.tables(source)
    lengths = torch.randint(1, case.context + 1, (case.sequences,), generator=source).tolist()
    cache = case.filled(tables, lengths, source, level)
    rows = torch.randint(0, case.sequences, (tokens,), generator=source).int()
    last = torch.tensor(lengths)[rows.long()]
    positions = (torch.rand(tokens, generator=source) * last).int()
    positions[1:2], rows[2:3], positions[3:4] = -1, case.sequences, case.context
    q = torch.randn(tokens, case.heads, case.dim + gap, generator=source)[..., : case.dim]
    args = (q, cache, LAYER, tables, rows, positions, case.dim**-0.5)
    got = call("paged_attention", *args, level=level, split=shuffled(seed)).out
    (want,), _ = reference("paged_attention", *args)
    largest = cache.nan_to_num().float().abs().max()
    assert ((got - want).abs() <= paged_attention.ERROR * largest).all()
    assert (got[1:4] == 0).all()
    assert not got.isnan().any()


@pytest.mark.parametrize("case", [Case(9, 3, 64, 16, 4), Case(4, 4, 24, 8, 5), Case(10, 2, 32, 3, 9)])
def test_attention_row_has_the_same_bits_in_every_bucket(level: str, case: Case, seed: int) -> None:
    source = generator(seed)
    tables, n = case.tables(source), max(BUCKETS)
    cache = case.filled(tables, [case.context] * case.sequences, source, level)
    q = torch.randn(n, case.heads, case.dim, generator=source)
    rows = torch.randint(0, case.sequences, (n,), generator=source).int()
    positions = torch.randint(0, case.context, (n,), generator=source).int()
    want = call("paged_attention", q, cache, LAYER, tables, rows, positions, 0.1, level=level).out
    for bucket in BUCKETS:
        p = torch.randperm(n, generator=source)[:bucket]
        args = (q[p], cache, LAYER, tables, rows[p], positions[p], 0.1)
        got = call("paged_attention", *args, level=level, split=shuffled(bucket), threads=1 + bucket % 2).out
        assert same_bytes(got, want[p])


@pytest.mark.parametrize("block_tokens", [4, 16])
def test_chunks_of_a_prompt_and_single_steps_give_the_same_bits(level: str, block_tokens: int, seed: int) -> None:
    """Keys are stored and read chunk by chunk, as a prompt of 53 tokens comes: whole, in pieces, or token by token."""
    source = generator(seed)
    case, length = Case(6, 2, 32, block_tokens, 64 // block_tokens), 53
    tables = case.tables(source)
    q = torch.randn(length, case.heads, case.dim, generator=source)
    k, v = (torch.randn(length, case.kv_heads, case.dim, generator=source) for _ in range(2))

    def run(sizes: list[int], sequence: int) -> tuple[Tensor, Tensor]:
        cache, outs, at = case.cache(), [], 0
        for size in sizes:
            part = slice(at, at + size)
            rows, positions = torch.full((size,), sequence).int(), torch.arange(at, at + size).int()
            stored = call("kv_store", k[part], v[part], cache, LAYER, tables, rows, positions, level=level).args[2]
            assert isinstance(stored, Tensor)
            cache = stored
            args = (q[part], cache, LAYER, tables, rows, positions, 0.2)
            outs.append(call("paged_attention", *args, level=level).out)
            at += size
        return torch.cat(outs), cache[tables[sequence].long(), LAYER].transpose(0, 1)

    want, stored = run([length], 0)
    for sizes, sequence in (([16, 16, 16, 5], 0), ([1, 30, 2, 20], 1), ([1] * length, 2)):
        outs, cache = run(sizes, sequence)
        assert same_bytes(outs, want)
        assert same_half(cache, stored)


def _outcome(case: Case, memory: Arena, cache: View, tables: Tensor, level: str, seed: int) -> Tensor:
    """Stores 40 tokens of one sequence and attends from the last 20, in blocks that the table names."""
    source = generator(seed)
    rows, positions = torch.zeros(40).int(), torch.arange(40).int()
    k, v = (torch.randn(40, case.kv_heads, case.dim, generator=source) for _ in range(2))
    q = torch.randn(20, case.heads, case.dim, generator=source)
    out = memory.empty((20, case.heads, case.dim), (case.heads * case.dim, case.dim, 1), "f32")
    recorder = KernelRecorder(memory, level, whole)
    place = memory.place
    at = (cache, LAYER, place(tables))
    LOWERINGS["heliograph.kv_store.default"](recorder, (place(k), place(v), *at, place(rows), place(positions)), {}, ())
    LOWERINGS["heliograph.paged_attention.default"](
        recorder, (place(q), *at, place(rows[20:]), place(positions[20:]), 0.1), {}, (out,)
    )
    return memory.tensor(out).clone()


def test_last_blocks_of_a_cache_of_one_tebibyte_give_the_bits_of_the_first(level: str, seed: int) -> None:
    case = Case(4, 2, 64, 16, 3, sequences=1)
    stride = 2 * 2 * case.kv_heads * case.block_tokens * case.dim
    blocks = (1 << 40) // (2 * stride)
    shape = (blocks, 2, 2, case.kv_heads, case.block_tokens, case.dim)
    sparse = Guarded(blocks * stride * 2)
    strides = (stride, stride // 2, stride // 4, case.block_tokens * case.dim, case.dim, 1)
    cache = View(sparse.address, shape, strides, "f16")
    with arena() as memory:
        first = _outcome(case, memory, cache, torch.tensor([[1, 2, 3]]).int(), level, seed)
        written = ctypes.string_at(sparse.address + 2 * stride, 3 * 2 * stride)
        last = _outcome(case, memory, cache, torch.tensor([[blocks - 3, blocks - 2, blocks - 1]]).int(), level, seed)
        moved = ctypes.string_at(sparse.address + (blocks - 3) * 2 * stride, 3 * 2 * stride)
        across = _outcome(
            case, memory, cache, torch.tensor([[(1 << 31) // stride, (1 << 32) // stride, 9]]).int(), level, seed
        )
    sparse.close()
    assert same_bytes(first, last)
    assert same_bytes(first, across)
    assert written == moved


# ---- block offsets in 64 bits --------------------------------------------------------------------------------------
_PRODUCT = re.compile(r"\bblock_index\s*\*|\*\s*block_index\b")
_TABLE_READ = re.compile(r"(\w+)\s*=\s*[^;=]*\b(?:table|tables)\[")


def narrow_products(source: str) -> list[str]:
    """Lines in which a block index takes part in a product before it is widened, or is read under another name."""
    bad = [line for line in source.splitlines() if _PRODUCT.search(line)]
    return bad + [match[0] for match in _TABLE_READ.finditer(source) if match[1] != "block_index"]


def test_no_kernel_multiplies_a_block_index_before_widening_it() -> None:
    for path in sorted(KERNEL_SOURCES.glob("*")):
        assert narrow_products(path.read_text()) == [], path.name
    paged = (KERNEL_SOURCES / "paged.h").read_text()
    assert "uint64_t(uint32_t(block_index)) * " in paged
    narrowed = paged.replace("uint64_t(uint32_t(block_index)) * ", "block_index * ")
    assert narrow_products(narrowed) != []
    assert narrow_products("const int32_t b = tables[3];\nuint64_t at = b * stride;") != []


# ---- refusals ------------------------------------------------------------------------------------------------------
def test_cache_with_gaps_inside_a_block_is_refused(seed: int) -> None:
    case = Case(2, 2, 16, 4, 2)
    tables, rows = case.tables(generator(seed)), torch.zeros(1).int()
    q, cache = torch.ones(1, 2, 16), case.cache(0.0)
    assert call("paged_attention", q, cache, 0, tables, rows, rows, 1.0).out.shape == (1, 2, 16)
    with pytest.raises(UnsupportedOpError) as refused:
        call("paged_attention", q, cache.transpose(3, 4), 0, tables, rows, rows, 1.0)
    assert "blocks without gaps" in refused.value.required
    with pytest.raises(UnsupportedOpError) as refused:
        call("paged_attention", q, cache, 2, tables, rows, rows, 1.0)
    assert refused.value.found == "layer 2"
