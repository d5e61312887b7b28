"""history_store on CUDA: a program takes ROWS rows."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from heliograph.ops.history_store import HISTORY_STORE
from heliograph.ops.triton_launch import launches

ROWS = 128


@triton.jit(
    do_not_specialize=["count", "slot_count", "context"],
    do_not_specialize_on_alignment=["ids", "slots", "positions", "history"],
)
def history_store_i32(ids, slots, positions, history, count, slot_count, context, ROWS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < count
    slot = tl.load(slots + row, mask=inside, other=-1)
    position = tl.load(positions + row, mask=inside, other=-1)
    known = (slot >= 0) & (slot < slot_count) & (position >= 0) & (position < context)
    given = tl.load(ids + row, mask=inside, other=0)
    tl.store(history + slot.to(tl.int64) * context + position, given, mask=known)


@launches(HISTORY_STORE)
def launch(
    *, ids: Tensor, slots: Tensor, positions: Tensor, history: Tensor, count: int, slot_count: int, context: int,
    **others: object,
) -> None:  # fmt: skip
    grid = (triton.cdiv(count, ROWS),)
    history_store_i32[grid](ids, slots, positions, history, count, slot_count, context, ROWS)
