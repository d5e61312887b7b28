"""``paged_attention(q f32[T, H, D], cache, layer, tables i32[S, MB], rows i32[T], positions i32[T], scale,
real i32[1]?) -> f32[T, H, D]``

Row t attends to the tokens 0..positions[t] of table row rows[t] (``ops.paging``), causal by construction: the keys of
a chunk are stored before. Query head h reads key head h // (H / KVH). A row of position -1, and one that the table
cannot hold, gives zeros; rows from ``real`` on are padding.

One algorithm for decode and prefill: tiles of 16 absolute positions, in order, with a running maximum and sum in f32.
A row's bits depend on its own query, position and keys alone. Kernels differ in how many heads of a group they
compute together, which changes no bit.

Tolerance: ERROR times the largest absolute key or value in the cache (their f16 rounding is ``kv_store``'s).

``reference``   the op in plain PyTorch
``triton``      the op on CUDA
"""

from __future__ import annotations

from collections.abc import Mapping

from heliograph.ops.arguments import Call
from heliograph.ops.launch import Kernel, ParamBlock, Recorder, View, lowers
from heliograph.ops.paging import FIELDS, paging

ERROR = 2.0**-16
MAX_DIM = 512

PARAMS = ParamBlock(
    ("q", "ptr"), ("cache", "ptr"), ("tables", "ptr"), ("rows", "ptr"), ("positions", "ptr"), ("real", "ptr"),
    ("out", "ptr"), ("q_token_stride", "u64"), ("q_head_stride", "u64"), *FIELDS, ("tokens", "u32"), ("heads", "u32"),
    ("scale", "f32"),
)  # fmt: skip
BY_GROUP = {heads: Kernel("attention", f"paged_attention_{heads}", PARAMS) for heads in (1, 2, 3, 4)}
KERNELS = tuple(BY_GROUP.values())


@lowers("heliograph.paged_attention.default")
def lower(recorder: Recorder, args: tuple[object, ...], keywords: Mapping[str, object], outs: tuple[View, ...]) -> None:
    names = ("q", "cache", "layer", "tables", "rows", "positions", "scale", "real")
    call = Call("paged_attention", names, args, keywords)
    q, place = call.view("q", "f32", 3), paging(call)
    tokens, heads, dim = q.shape
    call.require(
        heads > 0 and heads % place.kv_heads == 0 and dim == place.dim <= MAX_DIM,
        f"q {list(q.shape)} with {place.kv_heads} key heads of {place.dim}",
        f"a multiple of the key heads, equal dims up to {MAX_DIM}",
    )
    group = max(size for size in BY_GROUP if heads // place.kv_heads % size == 0)
    token_stride, head_stride = call.strides("q", q)
    recorder.launch(
        BY_GROUP[group], tokens * (heads // group), q=q, cache=place.cache, tables=place.tables,
        rows=call.vector("rows", "i32", tokens), positions=call.vector("positions", "i32", tokens), real=call.real(),
        out=outs[0], q_token_stride=token_stride, q_head_stride=head_stride, **place.fields(), tokens=tokens,
        heads=heads, scale=call.number("scale"),
    )  # fmt: skip
