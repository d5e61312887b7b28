"""sample: each step against the reference, the draw, the same token in every bucket, what padding leaves alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor

from heliograph.errors import UnsupportedOpError
from heliograph.ops.sample import BIASES, DRAW_ERROR, LOGPROB_ERROR, MAX_LOGPROBS, NAMES
from heliograph.ops.sample.reference import Settings, philox4x32_10, uniform

from .harness import BUCKETS, Result, call, examples, reference, same_bytes, shuffled
from .packed import generator
from .sampling import Batch


# ---- the generator -------------------------------------------------------------------------------------------------
# Known answers of the authors' own distribution (Random123, tests/kat_vectors, philox4x32 10).
@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)  # fmt: skip
def test_philox_gives_the_published_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], answer: tuple[int, int, int, int]
) -> None:
    assert philox4x32_10(key, counter) == answer


def test_kernel_draws_what_philox_says(level: str, seed: int) -> None:
    """Equal logits over a power of two: the token is the top bits of the draw, so the draw itself is compared."""
    source = generator(seed)
    seeds = torch.randint(-(2**63), 2**63 - 1, (300,), generator=source)
    seeds[:3] = torch.tensor([0, -1, 1 << 40])
    positions = torch.randint(0, 2**31 - 1, (300,), generator=source, dtype=torch.int32)
    batch = Batch(torch.zeros(300, 4096), fields={"seed": seeds, "sample_position": positions})
    ids = call("sample", *batch.args(), level=level).outs[0]
    assert ids.tolist() == [int(uniform(int(s), int(p)) * 4096) for s, p in zip(seeds, positions, strict=True)]


# ---- against the reference -----------------------------------------------------------------------------------------
def random_batch(rows: int, vocabulary: int, source: Generator) -> Batch:
    """Every setting differs from row to row; some rows are padding, greedy, masked, penalised or biased."""

    def numbers(low: float, high: float) -> Tensor:
        return torch.rand(rows, generator=source) * (high - low) + low

    def whole(low: int, high: int, *size: int) -> Tensor:
        return torch.randint(low, high, size or (rows,), generator=source, dtype=torch.int32)

    logits = torch.randn(rows, vocabulary, generator=source) * 3
    logits[torch.rand(logits.shape, generator=source) < 0.1] = 1.5  # equals
    slots, context = rows + 1, 12
    fields = {
        "slots": torch.where(torch.rand(rows, generator=source) < 0.1, -1, torch.arange(rows)).int(),
        "lengths": whole(-1, context + 2),
        "prompts": whole(-1, context + 2),
        "temperature": numbers(0.2, 1.8) * (torch.rand(rows, generator=source) < 0.8),
        "top_k": whole(-1, vocabulary + 3),
        "top_p": numbers(-0.1, 1.2),
        "min_p": numbers(-0.1, 0.3),
        "presence": numbers(-1, 1),
        "frequency": numbers(-1, 1),
        "repetition": numbers(0.5, 2),
        "bias_ids": whole(-3, vocabulary + 3, rows, BIASES),
        "bias_values": torch.randn(rows, BIASES, generator=source),
        "mask_index": whole(-1, 4),
        "masks": torch.randint(-(2**31), 2**31 - 1, (3, -(-vocabulary // 32)), generator=source).int(),
        "seed": torch.randint(-(2**62), 2**62, (rows,), generator=source),
        "sample_position": whole(0, 1000),
        "logprob_count": whole(-1, MAX_LOGPROBS + 3),
        "history": whole(-2, vocabulary + 2, slots, context),
        "last_token": whole(-9, 0, slots),
    }
    return Batch(logits, slots=slots, context=context, fields=fields)


def draw_is_close(batch: Batch, row: int, token: int) -> bool:
    """Is the row's draw within DRAW_ERROR of the token's share?"""
    cumulative = torch.cat((torch.zeros(1), batch.probabilities(row))).cumsum(0)
    named = batch.named()
    u = uniform(int(named["seed"][row]), int(named["sample_position"][row]))
    return bool(cumulative[token] - DRAW_ERROR <= u <= cumulative[token + 1] + DRAW_ERROR)


@examples(60)
@given(rows=st.integers(0, 9), vocabulary=st.integers(1, 130), seed=st.integers(0, 2**31))
def test_sample_does_what_the_reference_does(level: str, rows: int, vocabulary: int, seed: int) -> None:
    batch = random_batch(rows, vocabulary, generator(seed))
    got = call("sample", *batch.args(), level=level, split=shuffled(seed))
    (ids, logprobs, logprob_ids), after = reference("sample", *batch.args())
    for r in (got.outs[0] != ids).nonzero().flatten().tolist():
        assert draw_is_close(batch, r, int(got.outs[0][r]))
    equal = got.outs[0] == ids
    assert ((got.outs[1] - logprobs).abs() <= LOGPROB_ERROR)[equal].all()
    assert got.outs[2].equal(logprob_ids)
    slots = batch.named()["slots"]
    for r in range(rows):
        if slots[r] >= 0:
            assert last_token(got)[slots[r]] == got.outs[0][r]
    idle = torch.ones(rows + 1, dtype=torch.bool)
    idle[slots[slots >= 0].long()] = False
    assert last_token(got)[idle].equal(batch.named()["last_token"][idle])
    after_history = after[NAMES.index("history")]
    assert isinstance(after_history, Tensor)
    assert after_history.equal(batch.named()["history"])


def last_token(result: Result) -> Tensor:
    value = result.args[NAMES.index("last_token")]
    assert isinstance(value, Tensor)
    return value


def test_large_vocabulary_with_all_settings_agrees_with_the_reference(level: str, seed: int) -> None:
    batch = random_batch(12, 49_152, generator(seed))
    got = call("sample", *batch.args(), level=level)
    (ids, logprobs, logprob_ids), _ = reference("sample", *batch.args())
    for r in range(12):
        assert got.outs[0][r] == ids[r] or draw_is_close(batch, r, int(got.outs[0][r]))
    equal = got.outs[0] == ids
    assert ((got.outs[1] - logprobs).abs() <= LOGPROB_ERROR)[equal].all()
    assert got.outs[2].equal(logprob_ids)


# ---- single promises -----------------------------------------------------------------------------------------------
def test_greedy_takes_the_lowest_id_among_equals(level: str) -> None:
    logits = torch.zeros(4, 50)
    logits[0, [7, 30, 49]] = 2.0
    logits[1, :] = -5.0
    logits[2, [18, 17]] = torch.inf
    logits[3, 20:] = torch.nan
    logits[3, [3, 9]] = 1.0
    batch = Batch(logits, Settings(temperature=0.0))
    assert call("sample", *batch.args(), level=level).outs[0].tolist() == [7, 0, 17, 3]


def test_top_k_keeps_exactly_k_of_equal_logits(level: str) -> None:
    batch = Batch(torch.zeros(2000, 40), Settings(top_k=3))
    assert set(call("sample", *batch.args(), level=level).outs[0].tolist()) == {0, 1, 2}


def test_top_p_keeps_the_token_that_reaches_it_and_none_after(level: str) -> None:
    logits = torch.tensor([0.5, 0.25, 0.125, 0.125]).log().expand(2000, 4)
    for top_p, kept in (
        (0.0, {0}),
        (0.49, {0}),
        (0.51, {0, 1}),
        (0.74, {0, 1}),
        (0.76, {0, 1, 2}),
        (0.9, {0, 1, 2, 3}),
    ):
        batch = Batch(logits, Settings(top_p=top_p))
        assert set(call("sample", *batch.args(), level=level).outs[0].tolist()) == kept


def test_nothing_allowed_gives_the_lowest_id(level: str) -> None:
    batch = Batch(torch.randn(2, 33), fields={"mask_index": torch.tensor([0, 0]).int()})
    assert call("sample", *batch.args(), level=level).outs[0].tolist() == [0, 0]


def test_logprobs_are_taken_before_penalties_bias_and_mask(level: str, seed: int) -> None:
    """The same logprobs with and without them, although another token is chosen."""
    logits = torch.randn(1, 100, generator=generator(seed))
    best = int(logits.argmax())
    count = {"logprob_count": torch.tensor([5]).int()}
    plain = call("sample", *Batch(logits, Settings(temperature=0), fields=count).args(), level=level)
    allowed = torch.full((1, 4), -1, dtype=torch.int32)
    allowed[0, best // 32] &= ~(1 << best % 32)
    changed = {
        "history": torch.full((4, 8), best, dtype=torch.int32), "lengths": torch.tensor([8]).int(),
        "bias_ids": torch.full((1, BIASES), best, dtype=torch.int32), "bias_values": torch.full((1, BIASES), -3.0),
        "masks": allowed, "mask_index": torch.tensor([0]).int(), **count,
    }  # fmt: skip
    settings = Settings(temperature=0, presence=1.0, frequency=1.0, repetition=1.5)
    other = call("sample", *Batch(logits, settings, fields=changed).args(), level=level)
    assert plain.outs[0].item() == best != other.outs[0].item()
    assert same_bytes(plain.outs[1][:, 1:], other.outs[1][:, 1:])
    assert plain.outs[2].equal(other.outs[2])
    exact = torch.log_softmax(logits.double(), 1)[0]
    assert abs(plain.outs[1][0, 0] - exact[best]) <= LOGPROB_ERROR
    assert abs(other.outs[1][0, 0] - exact[other.outs[0].item()]) <= LOGPROB_ERROR


@pytest.mark.parametrize(
    ("settings", "prompt", "taken"),
    [
        (Settings(temperature=0, presence=2.0), 8, "best"),  # it was only asked: OpenAI's penalties leave it
        (Settings(temperature=0, frequency=2.0), 8, "best"),
        (Settings(temperature=0, presence=2.0), 7, "other"),
        (Settings(temperature=0, frequency=0.2), 4, "best"),  # four times 0.2 are less than the lead of 1
        (Settings(temperature=0, frequency=0.3), 4, "other"),
        (Settings(temperature=0, repetition=4.0), 8, "other"),  # which the prompt counts for
    ],
)
def test_presence_and_frequency_count_what_was_generated(
    level: str, settings: Settings, prompt: int, taken: str
) -> None:
    fields = {
        "history": torch.full((4, 8), 5, dtype=torch.int32), "lengths": torch.tensor([8]).int(),
        "prompts": torch.tensor([prompt]).int(),
    }  # fmt: skip
    logits = torch.zeros(1, 20)
    logits[0, 5], logits[0, 7] = 2.0, 1.0
    args = Batch(logits, settings, fields=fields).args()
    for got in (call("sample", *args, level=level).outs, reference("sample", *args)[0]):
        assert got[0].item() == {"best": 5, "other": 7}[taken]


def test_padding_row_changes_no_state_and_reads_as_padding(level: str) -> None:
    slots = torch.tensor([-1, 2, 4]).int()
    args = Batch(torch.randn(3, 20), fields={"slots": slots, "logprob_count": torch.full((3,), 4).int()}).args()
    got = call("sample", *args, level=level)
    assert [got.outs[0][0], got.outs[0][2]] == [-1, -1]
    assert (got.outs[1][[0, 2]] == 0).all()
    assert (got.outs[2][[0, 2]] == -1).all()
    assert last_token(got).tolist() == [-7, -7, got.outs[0][1], -7]


def test_seed_and_position_alone_decide(level: str, seed: int) -> None:
    """One request in every row of every bucket, beside strangers and in any slot: one token."""
    source = generator(seed)
    alone = random_batch(1, 5_000, source)
    alone.fields |= {"slots": torch.tensor([0]).int(), "temperature": torch.tensor([0.9])}
    want = call("sample", *alone.args(), level=level)
    named = alone.named()
    for bucket in BUCKETS[:8]:
        place = bucket // 2
        batch = random_batch(bucket, 5_000, source)
        batch.logits[place] = alone.logits[0]
        for name, value in batch.fields.items():
            if name not in ("slots", "history", "last_token", "masks"):
                value[place] = named[name][0]
        batch.fields["masks"] = named["masks"]
        batch.fields["slots"][place] = place
        batch.fields["history"][place] = named["history"][0]
        got = call("sample", *batch.args(), level=level, split=shuffled(bucket), threads=2)
        for a, b in zip(got.outs, want.outs, strict=True):
            assert same_bytes(a[place : place + 1], b)


def test_another_seed_or_position_gives_other_draws(level: str) -> None:
    logits = torch.zeros(64, 1 << 16)
    same = Batch(logits, fields={"seed": torch.zeros(64, dtype=torch.int64)})
    assert len(set(call("sample", *same.args(), level=level).outs[0].tolist())) == 1
    assert len(set(call("sample", *Batch(logits).args(), level=level).outs[0].tolist())) > 60
    moved = replace(same, fields=same.fields | {"sample_position": torch.arange(64).int()})
    assert len(set(call("sample", *moved.args(), level=level).outs[0].tolist())) > 60


def test_masks_of_another_vocabulary_are_refused() -> None:
    batch = Batch(torch.randn(1, 64))
    assert call("sample", *batch.args()).outs[0].shape == (1,)
    batch.fields["masks"] = torch.zeros(2, 3, dtype=torch.int32)
    with pytest.raises(UnsupportedOpError) as refused:
        call("sample", *batch.args())
    assert refused.value.found == "masks of 3 words"
