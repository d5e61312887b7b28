"""resolve_ids on CUDA: a program takes ROWS rows."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from heliograph.ops.resolve_ids import RESOLVE_IDS
from heliograph.ops.triton_launch import launches

ROWS = 128


@triton.jit(
    do_not_specialize=["count", "slot_count"], do_not_specialize_on_alignment=["ids", "slots", "last_token", "out"]
)
def resolve_ids_i32(ids, slots, last_token, out, count, slot_count, ROWS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < count
    given = tl.load(ids + row, mask=inside, other=0)
    slot = tl.load(slots + row, mask=inside, other=-1)
    from_slot = (given == -1) & (slot >= 0) & (slot < slot_count)
    last = tl.load(last_token + slot, mask=from_slot, other=0)
    tl.store(out + row, tl.where(from_slot, last, given), mask=inside)


@launches(RESOLVE_IDS)
def launch(
    *, ids: Tensor, slots: Tensor, last_token: Tensor, out: Tensor, count: int, slot_count: int, **others: object
) -> None:
    resolve_ids_i32[(triton.cdiv(count, ROWS),)](ids, slots, last_token, out, count, slot_count, ROWS)
