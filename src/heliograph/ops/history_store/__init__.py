"""``history_store(ids i32[T], slots i32[T], positions i32[T], history i32[slots, context]) -> ()``: the token history
that penalties are computed from; history[slots[t], positions[t]] = ids[t].

A row whose slot or position is outside (both are -1 in padding) writes nothing. Exact.

``reference``   the op in plain PyTorch
``triton``      the op on CUDA
"""

from __future__ import annotations

from collections.abc import Mapping

from heliograph.ops.arguments import Call, blocks
from heliograph.ops.launch import Kernel, ParamBlock, Recorder, View, lowers

BLOCK_IDS = 1024

HISTORY_STORE = Kernel(
    "glue", "history_store",
    ParamBlock(
        ("ids", "ptr"), ("slots", "ptr"), ("positions", "ptr"), ("history", "ptr"), ("count", "u32"),
        ("slot_count", "u32"), ("context", "u32"),
    ),
)  # fmt: skip
KERNELS = (HISTORY_STORE,)


@lowers("heliograph.history_store.default")
def lower(recorder: Recorder, args: tuple[object, ...], keywords: Mapping[str, object], outs: tuple[View, ...]) -> None:
    call = Call("history_store", ("ids", "slots", "positions", "history"), args, keywords)
    ids, history = call.vector("ids", "i32"), call.contiguous("history", "i32", 2)
    count = ids.shape[0]
    recorder.launch(
        HISTORY_STORE, blocks(count, BLOCK_IDS), ids=ids, slots=call.vector("slots", "i32", count),
        positions=call.vector("positions", "i32", count), history=history, count=count, slot_count=history.shape[0],
        context=history.shape[1],
    )  # fmt: skip
