"""Rows that are real have the bits that they have without padding; those behind them are left as they were."""

from __future__ import annotations

import pytest
import torch
from torch import Generator, Tensor

from heliograph.errors import UnsupportedOpError

from .harness import Split, call, reference, same_bytes, shuffled, singles_backwards, whole
from .packed import LAYOUT_NAMES, generator, random_weight
from .sampling import Batch

ROWS = (1, 5, 16, 61, 130)
LINEARS = [f"linear {layout}" for layout in LAYOUT_NAMES]
OPS = (
    *LINEARS, "embedding", "rms_norm", "rms_norm of heads", "rope", "silu_mul", "add", "paged_attention", "sample"
)  # fmt: skip


def arguments(op: str, rows: int, source: Generator) -> tuple[object, ...]:
    """A call on ``rows`` rows, without ``real``."""
    name, _, layout = op.partition(" ")

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source)

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=source, dtype=torch.int32)

    if name == "linear":
        return numbers(rows, 96), random_weight(layout, 21, 96, source), numbers(21), layout, 21
    if name == "embedding":
        return integers(0, 9, rows), random_weight("q8_0", 9, 64, source), "q8_0", 64
    if name == "rms_norm":
        return numbers(rows, 3, 40) if layout else numbers(rows, 700), numbers(40 if layout else 700), 1e-5
    if name == "rope":
        return numbers(rows, 3, 16), integers(0, 99, rows), numbers(8), False
    if name == "paged_attention":
        cache, tables = numbers(7, 1, 2, 2, 8, 16).half(), torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.int32)
        return numbers(rows, 6, 16), cache, 0, tables, integers(0, 2, rows), integers(0, 24, rows), 0.25
    if name == "sample":
        return Batch(numbers(rows, 300), slots=rows).args()
    return numbers(rows, 1100), numbers(rows, 1100)


def untouched(x: Tensor) -> bool:
    """Full of what memory holds before a call."""
    return bool((x.contiguous().view(torch.uint8) == 0xFF).all())


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("rows", ROWS)
def test_real_rows_are_computed_and_no_other(level: str, op: str, rows: int, seed: int) -> None:
    name, args = op.partition(" ")[0], arguments(op, rows, generator(seed))
    every = call(name, *args, *([None] if name == "sample" else []), level=level).outs
    for stated in {-1, 0, 1, rows // 2, rows - 1, rows, rows + 3}:
        real = min(max(stated, 0), rows)
        for split in (whole, singles_backwards, shuffled(stated + 1)):
            given = torch.tensor([stated], dtype=torch.int32)
            outs = call(name, *args, given, level=level, split=split).outs
            assert all(same_bytes(out[:real], all_rows[:real]) for out, all_rows in zip(outs, every, strict=True))
            assert all(untouched(out[real:]) for out in outs) or name == "sample"


@pytest.mark.parametrize("split", [whole, singles_backwards, shuffled(5)])
def test_sample_says_of_padding_what_it_says_of_a_row_without_slot(level: str, split: Split, seed: int) -> None:
    args = arguments("sample", 9, generator(seed))
    ids, logprobs, logprob_ids = call("sample", *args, torch.tensor([4]).int(), level=level, split=split).outs
    assert (ids[4:] == -1).all()
    assert (logprobs[4:] == 0).all()
    assert (logprob_ids[4:] == -1).all()


@pytest.mark.parametrize("split", [whole, singles_backwards, shuffled(5)])
def test_padding_is_cleared_and_no_real_row(level: str, split: Split, seed: int) -> None:
    x = torch.randn(11, 37, generator=generator(seed))
    for stated in (-1, 0, 1, 10, 11, 12):
        real = torch.tensor([stated]).int()
        got = call("clear_padding", x, real, level=level, split=split).args[0]
        _, (want, _) = reference("clear_padding", x, real)
        assert isinstance(got, Tensor)
        assert isinstance(want, Tensor)
        assert same_bytes(got, want)


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("real", [8, 24])
def test_few_real_rows_are_spread_over_all_workers(level: str, workers: int, real: int, seed: int) -> None:
    """Each worker runs an equal range of the grid: it must find about its share of the real rows there."""
    x, y = (torch.randn(256, 512, generator=generator(seed)) for _ in range(2))
    given = torch.tensor([real], dtype=torch.int32)
    for worker in range(workers):

        def one_worker(blocks: int, worker: int = worker) -> list[tuple[int, int]]:
            return [(blocks * worker // workers, blocks * (worker + 1) // workers)]

        out = call("add", x, y, given, level=level, split=one_worker).out
        done = int((out.contiguous().view(torch.uint8) != 0xFF).any(dim=1).sum())
        assert abs(done - real / workers) <= 1


def test_real_is_one_number() -> None:
    x = torch.ones(4, 8)
    assert call("add", x, x, torch.tensor([2], dtype=torch.int32)).out.shape == (4, 8)
    for wrong in (torch.tensor([2, 3], dtype=torch.int32), torch.tensor([2]), torch.tensor(2, dtype=torch.int32)):
        with pytest.raises(UnsupportedOpError) as refused:
            call("add", x, x, wrong)
        assert "real" in refused.value.found


def test_real_rows_are_those_of_matrices() -> None:
    x, real = torch.ones(2, 2, 8), torch.ones(1, dtype=torch.int32)
    assert call("add", x, x).out.shape == (2, 2, 8)
    with pytest.raises(UnsupportedOpError):
        call("add", x, x, real)
