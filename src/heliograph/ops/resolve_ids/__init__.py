"""``resolve_ids(ids i32[T], slots i32[T], last_token i32[slots]) -> i32[T]``: id -1 stands for the token that the
row's slot sampled last, so a step can be queued before its predecessor's result was read.

Other ids, and -1 in a row whose slot is outside the table, are passed on. Exact.

``reference``   the op in plain PyTorch
``triton``      the op on CUDA
"""

from __future__ import annotations

from collections.abc import Mapping

from heliograph.ops.arguments import Call, blocks
from heliograph.ops.launch import Kernel, ParamBlock, Recorder, View, lowers

BLOCK_IDS = 1024

RESOLVE_IDS = Kernel(
    "glue", "resolve_ids",
    ParamBlock(
        ("ids", "ptr"), ("slots", "ptr"), ("last_token", "ptr"), ("out", "ptr"), ("count", "u32"),
        ("slot_count", "u32"),
    ),
)  # fmt: skip
KERNELS = (RESOLVE_IDS,)


@lowers("heliograph.resolve_ids.default")
def lower(recorder: Recorder, args: tuple[object, ...], keywords: Mapping[str, object], outs: tuple[View, ...]) -> None:
    call = Call("resolve_ids", ("ids", "slots", "last_token"), args, keywords)
    ids, last_token = call.vector("ids", "i32"), call.vector("last_token", "i32")
    count = ids.shape[0]
    recorder.launch(
        RESOLVE_IDS, blocks(count, BLOCK_IDS), ids=ids, slots=call.vector("slots", "i32", count),
        last_token=last_token, out=outs[0], count=count, slot_count=last_token.shape[0],
    )  # fmt: skip
