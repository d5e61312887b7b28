"""sample on CUDA: a program is a row, and goes over its vocabulary in tiles. It does what the host kernel does, step by
step: masses and the draw have the host's bits, sums of masses are f64, so that for equal logits the token is the same
but where a boundary lies within rounding of f64.

What one pass stores and a later one loads may be another thread's: a barrier stands between them.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from heliograph.ops.sample import SAMPLE
from heliograph.ops.triton_launch import launches, stated
from heliograph.ops.triton_math import exp, real_rows

TILE = 4096
_LEAST_KEY = tl.constexpr(-(1 << 31))
_FINITE_KEY = tl.constexpr(-0x7F800000)  # of the smallest finite logit: less cannot be chosen
_GIVEN = tl.constexpr(1 << 30)  # more than a context has tokens
_NOTHING = tl.constexpr(-(1 << 63))  # comes after every token


# ---- order: by logit, largest first, equals by id, lowest first ----------------------------------------------------
@triton.jit
def _cleaned(x):
    """NaN can never be chosen; an infinity would make every difference undefined, so it is the largest number."""
    return tl.where(x != x, float("-inf"), tl.minimum(x, 3.4028234663852886e38))


@triton.jit
def _key(x):
    """Monotone: a larger logit has a larger key; both zeros have the same. Not for NaN."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _place(x, v):
    """One number for a token: the larger, the earlier it comes."""
    return (_key(x).to(tl.int64) << 32) | (0x7FFFFFFF - v).to(tl.int64)


@triton.jit
def _id(place):
    return 0x7FFFFFFF - (place & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def _logit(place):
    key = (place >> 32).to(tl.int32)
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


# ---- passes over a row ---------------------------------------------------------------------------------------------
@triton.jit
def _first_after(logits, vocabulary, last, TILE: tl.constexpr):
    """The place of the first token behind ``last``."""
    best = tl.full([TILE], _NOTHING, tl.int64)
    for start in range(0, vocabulary, TILE):
        v = start + tl.arange(0, TILE)
        place = _place(_cleaned(tl.load(logits + v, mask=v < vocabulary, other=0.0)), v)
        best = tl.maximum(best, tl.where((v < vocabulary) & (place < last), place, _NOTHING))
    return tl.max(best, 0)


@triton.jit
def _count(work, vocabulary, least, TILE: tl.constexpr):
    """How many tokens have a key of at least ``least``."""
    found = tl.zeros([TILE], tl.int32)
    for start in range(0, vocabulary, TILE):
        v = start + tl.arange(0, TILE)
        key = _key(tl.load(work + v, mask=v < vocabulary, other=0.0)).to(tl.int64)
        found += ((v < vocabulary) & (key >= least)).to(tl.int32)
    return tl.sum(found, 0)


@triton.jit
def _mass(work, mass, vocabulary, least, TILE: tl.constexpr):
    """The mass of the tokens that have a key of at least ``least``."""
    found = tl.zeros([TILE], tl.float64)
    for start in range(0, vocabulary, TILE):
        v = start + tl.arange(0, TILE)
        key = _key(tl.load(work + v, mask=v < vocabulary, other=0.0)).to(tl.int64)
        part = tl.load(mass + v, mask=(v < vocabulary) & (key >= least), other=0.0)
        found += part.to(tl.float64)
    return tl.sum(found, 0)


@triton.jit
def _total(logits, vocabulary, largest, TILE: tl.constexpr):
    """The sum of exp(logit - largest)."""
    sums = tl.zeros([TILE], tl.float64)
    for start in range(0, vocabulary, TILE):
        v = start + tl.arange(0, TILE)
        x = _cleaned(tl.load(logits + v, mask=v < vocabulary, other=float("-inf")))
        sums += tl.where(v < vocabulary, exp(x - largest), 0.0).to(tl.float64)
    return tl.sum(sums, 0).to(tl.float32)


# ---- what changes logits -------------------------------------------------------------------------------------------
@triton.jit
def _top_logprobs(logits, logprobs, logprob_ids, vocabulary, wanted, largest, log_total, TILE: tl.constexpr):
    last = tl.full([], 0x7FFFFFFFFFFFFFFF, tl.int64)
    for i in range(0, wanted):
        last = _first_after(logits, vocabulary, last, TILE)
        tl.store(logprobs + 1 + i, (_logit(last) - largest) - log_total)
        tl.store(logprob_ids + i, _id(last))


@triton.jit
def _penalise(
    logits, work, counts, history, vocabulary, length, prompt, presence, frequency, repetition, TILE: tl.constexpr
):  # fmt: skip
    """Fills ``work`` with the logits, those of tokens of the history penalised; these are counted first: how often each
    was generated, and in the bit _GIVEN whether it is in the prompt."""
    penalised = (length > 0) & ((presence != 0.0) | (frequency != 0.0) | (repetition != 1.0))
    if penalised:
        for start in range(0, vocabulary, TILE):
            v = start + tl.arange(0, TILE)
            tl.store(counts + v, tl.zeros([TILE], tl.int32), mask=v < vocabulary)
        tl.debug_barrier()
        for start in range(0, length, TILE):
            h = start + tl.arange(0, TILE)
            past = tl.load(history + h, mask=h < length, other=-1)
            known = (past >= 0) & (past < vocabulary)
            tl.atomic_add(counts + past, 1, mask=known & (h >= prompt), sem="relaxed")
            tl.atomic_or(counts + past, _GIVEN, mask=known & (h < prompt), sem="relaxed")
        tl.debug_barrier()
    for start in range(0, vocabulary, TILE):
        v = start + tl.arange(0, TILE)
        x = _cleaned(tl.load(logits + v, mask=v < vocabulary, other=0.0))
        count = tl.load(counts + v, mask=(v < vocabulary) & penalised, other=0)
        less = tl.where(x > 0.0, tl.div_rn(x, repetition), x * repetition)
        generated = count & (_GIVEN - 1)
        less = tl.where(generated > 0, less - frequency * generated.to(tl.float32) - presence, less)
        tl.store(work + v, tl.where(count > 0, less, x), mask=v < vocabulary)
    tl.debug_barrier()


@triton.jit
def _add_bias(work, vocabulary, bias_ids, bias_values):
    """One after the other, since a token may be named twice."""
    for i in range(0, 32):
        token = tl.load(bias_ids + i)
        if (token >= 0) & (token < vocabulary):
            tl.store(work + token, tl.load(work + token) + tl.load(bias_values + i))
        tl.debug_barrier()


@triton.jit
def _apply_mask(work, vocabulary, mask, masked, TILE: tl.constexpr):
    """Returns the place of the first token of all that are allowed."""
    best = tl.full([TILE], _NOTHING, tl.int64)
    for start in range(0, vocabulary, TILE):
        v = start + tl.arange(0, TILE)
        word = tl.load(mask + v // 32, mask=(v < vocabulary) & masked, other=-1)
        x = tl.load(work + v, mask=v < vocabulary, other=0.0)
        x = tl.where((word >> (v % 32)) & 1 != 0, x, float("-inf"))
        tl.store(work + v, x, mask=v < vocabulary)
        best = tl.maximum(best, tl.where(v < vocabulary, _place(x, v), _NOTHING))
    tl.debug_barrier()
    return tl.max(best, 0)


# ---- the draw ------------------------------------------------------------------------------------------------------
@triton.jit
def _list_candidates(work, mass, vocabulary, largest, temperature, top_k, TILE: tl.constexpr):
    """Fills ``mass`` with exp((logit - largest) / temperature) of the tokens that top-k leaves, with 0 of others."""
    cut = tl.full([], _FINITE_KEY, tl.int64)
    equal = tl.full([], 0x7FFFFFFF, tl.int32)  # how many tokens of exactly this key are in, by ascending id
    if (top_k > 0) & (top_k < vocabulary):
        low = tl.full([], _LEAST_KEY, tl.int64)
        high = tl.full([], 0x7FFFFFFF, tl.int64)
        for _ in range(32):
            middle = low + ((high - low + 1) >> 1)
            enough = _count(work, vocabulary, middle, TILE) >= top_k
            low = tl.where(enough, middle, low)
            high = tl.where(enough, high, middle - 1)
        if low >= cut:  # else fewer than k can be chosen
            cut = low
            equal = top_k - _count(work, vocabulary, low + 1, TILE)
    seen = tl.full([], 0, tl.int32)
    for start in range(0, vocabulary, TILE):
        v = start + tl.arange(0, TILE)
        x = tl.load(work + v, mask=v < vocabulary, other=float("-inf"))
        key = _key(x).to(tl.int64)
        same = (v < vocabulary) & (key == cut)
        number = seen + tl.cumsum(same.to(tl.int32), 0) - 1
        kept = ((v < vocabulary) & (key > cut)) | (same & (number < equal))
        part = exp(tl.div_rn(tl.where(kept, x - largest, 0.0), temperature))
        tl.store(mass + v, tl.where(kept, part, 0.0), mask=v < vocabulary)
        seen += tl.sum(same.to(tl.int32), 0)


@triton.jit
def _keep_top_p(work, mass, vocabulary, largest, top_p, TILE: tl.constexpr):
    """Clears the mass of all but the fewest first tokens that reach ``top_p`` of the whole."""
    target = _mass(work, mass, vocabulary, tl.full([], _LEAST_KEY, tl.int64), TILE) * top_p.to(tl.float64)
    low = tl.full([], _LEAST_KEY, tl.int64)
    high = _key(largest).to(tl.int64)
    for _ in range(32):
        middle = low + ((high - low + 1) >> 1)
        enough = _mass(work, mass, vocabulary, middle, TILE) >= target
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
    before = _mass(work, mass, vocabulary, low + 1, TILE)
    seen = tl.full([], 0, tl.int32)
    tl.debug_barrier()
    for start in range(0, vocabulary, TILE):
        v = start + tl.arange(0, TILE)
        key = _key(tl.load(work + v, mask=v < vocabulary, other=float("-inf"))).to(tl.int64)
        part = tl.load(mass + v, mask=v < vocabulary, other=0.0)
        same = (key == low) & (part > 0.0)
        number = seen + tl.cumsum(same.to(tl.int32), 0) - 1
        short = (number == 0) | (before + number.to(tl.float64) * part.to(tl.float64) < target)
        kept = (key > low) | (same & short)
        tl.store(mass + v, tl.where(kept, part, 0.0), mask=v < vocabulary)
        seen += tl.sum(same.to(tl.int32), 0)


@triton.jit
def _part(mass, v, vocabulary, min_p):
    """Masses in f64, those below min-p as 0; the largest mass is exp(0) = 1."""
    part = tl.load(mass + v, mask=v < vocabulary, other=0.0)
    return tl.where((part < min_p) & (part < 1.0), 0.0, part).to(tl.float64)


@triton.jit
def _uniform(seed, position):
    """Philox4x32-10, key seed (low word first), counter (position, 0, 0, 0): the first two words as 53 bits."""
    word = tl.full([], 0xFFFFFFFF, tl.uint64)
    a = tl.full([], 0xD2511F53, tl.uint64)
    b = tl.full([], 0xCD9E8D57, tl.uint64)
    k0 = seed.to(tl.uint64, bitcast=True) & word
    k1 = seed.to(tl.uint64, bitcast=True) >> 32
    c0 = position.to(tl.int64).to(tl.uint64, bitcast=True) & word
    c1 = c0 & 0
    c2 = c0 & 0
    c3 = c0 & 0
    for _ in range(10):
        x = a * c0
        y = b * c2
        c0 = (y >> 32) ^ c1 ^ k0
        c1 = y & word
        c2 = (x >> 32) ^ c3 ^ k1
        c3 = x & word
        k0 = (k0 + 0x9E3779B9) & word
        k1 = (k1 + 0xBB67AE85) & word
    return ((c0 << 32 | c1) >> 11).to(tl.int64).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def _draw(mass, vocabulary, min_p, u, otherwise, TILE: tl.constexpr):
    """The first token at which the running sum of masses exceeds u times the whole."""
    total = tl.full([], 0.0, tl.float64)
    for start in range(0, vocabulary, TILE):
        total += tl.sum(_part(mass, start + tl.arange(0, TILE), vocabulary, min_p), 0)
    target = u * total
    before = tl.full([], 0.0, tl.float64)
    chosen = tl.full([], -1, tl.int32)
    for start in range(0, vocabulary, TILE):
        v = start + tl.arange(0, TILE)
        part = _part(mass, v, vocabulary, min_p)
        after = before + tl.sum(part, 0)
        if (chosen < 0) & (after > target):
            over = (before + tl.cumsum(part, 0) > target) & (part > 0.0)
            first = tl.min(tl.where(over, v, 0x7FFFFFFF), 0)
            last = tl.max(tl.where(part > 0.0, v, -1), 0)  # should rounding leave the target out of reach
            chosen = tl.minimum(first, last)
        before = after
    return tl.where(chosen < 0, otherwise, chosen)


@triton.jit(
    do_not_specialize=[
        "has_real", "logits_stride", "rows", "vocabulary", "padded", "slot_count", "context", "mask_count"
    ],
    do_not_specialize_on_alignment=[
        "logits", "slots", "lengths", "prompts", "temperature", "top_k", "top_p", "min_p", "presence", "frequency",
        "repetition", "bias_ids", "bias_values", "mask_index", "masks", "seed", "sample_position", "logprob_count",
        "history", "last_token", "real", "ids", "logprobs", "logprob_ids", "work", "mass", "counts",
    ],
)  # fmt: skip
def sample_f32(
    logits, slots, lengths, prompts, temperature, top_k, top_p, min_p, presence, frequency, repetition, bias_ids,
    bias_values, mask_index, masks, seed, sample_position, logprob_count, history, last_token, real, has_real, ids,
    logprobs, logprob_ids, work, mass, counts, logits_stride, rows, vocabulary, padded, slot_count, context, mask_count,
    TILE: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0).to(tl.int64)
    logits += r * logits_stride
    work += r * padded
    mass += r * padded
    counts += r * padded
    logprobs += r * 21
    logprob_ids += r * 20
    lane = tl.arange(0, 32)
    tl.store(logprobs + lane, tl.zeros([32], tl.float32), mask=lane < 21)
    tl.store(logprob_ids + lane, tl.full([32], -1, tl.int32), mask=lane < 20)
    slot = tl.load(slots + r)
    token = tl.full([], -1, tl.int32)
    if (r < real_rows(real, has_real, rows)) & (slot >= 0) & (slot < slot_count):
        tl.debug_barrier()

        largest = _logit(_first_after(logits, vocabulary, tl.full([], 0x7FFFFFFFFFFFFFFF, tl.int64), TILE))
        log_total = tl.log(_total(logits, vocabulary, largest, TILE))
        wanted = tl.minimum(tl.minimum(tl.load(logprob_count + r), 20), vocabulary)
        _top_logprobs(logits, logprobs, logprob_ids, vocabulary, wanted, largest, log_total, TILE)

        repetition_r = tl.load(repetition + r)
        repetition_r = tl.where(repetition_r > 0.0, repetition_r, 1.0)
        length = tl.minimum(tl.maximum(tl.load(lengths + r), 0), context)
        past = history + slot.to(tl.int64) * context
        _penalise(
            logits, work, counts, past, vocabulary, length, tl.load(prompts + r), tl.load(presence + r),
            tl.load(frequency + r), repetition_r, TILE,
        )  # fmt: skip
        _add_bias(work, vocabulary, bias_ids + r * 32, bias_values + r * 32)
        mask = tl.load(mask_index + r)
        masked = (mask >= 0) & (mask < mask_count)
        first = _apply_mask(work, vocabulary, masks + mask.to(tl.int64) * ((vocabulary + 31) // 32), masked, TILE)
        token = _id(first)

        temperature_r = tl.load(temperature + r)
        if (temperature_r > 0.0) & (_logit(first) > float("-inf")):
            _list_candidates(work, mass, vocabulary, _logit(first), temperature_r, tl.load(top_k + r), TILE)
            tl.debug_barrier()
            top_p_r = tl.load(top_p + r)
            if top_p_r < 1.0:
                _keep_top_p(work, mass, vocabulary, _logit(first), top_p_r, TILE)
                tl.debug_barrier()
            u = _uniform(tl.load(seed + r), tl.load(sample_position + r))
            token = _draw(mass, vocabulary, tl.load(min_p + r), u, token, TILE)

        chosen = _cleaned(tl.load(logits + token))
        tl.store(logprobs, (chosen - largest) - log_total)
        tl.store(last_token + slot, token)
    tl.store(ids + r, token)


@launches(SAMPLE)
def launch(
    *, real: Tensor | None, ids: Tensor, logprobs: Tensor, logprob_ids: Tensor, work: Tensor, mass: Tensor,
    list: Tensor, logits_stride: int, rows: int, vocabulary: int, padded: int, slot_count: int, context: int,
    mask_count: int, blocks: int, **inputs: Tensor,
) -> None:  # fmt: skip
    sample_f32[(rows,)](
        **inputs, **dict(zip(("real", "has_real"), stated(real, logprobs), strict=True)), ids=ids, logprobs=logprobs,
        logprob_ids=logprob_ids, work=work, mass=mass, counts=list, logits_stride=logits_stride, rows=rows,
        vocabulary=vocabulary, padded=padded, slot_count=slot_count, context=context, mask_count=mask_count, TILE=TILE,
        num_warps=16, enable_fp_fusion=False,
    )  # fmt: skip
