"""``kv_store(k f32[T, KVH, D], v f32[T, KVH, D], cache, layer, tables i32[S, MB], rows i32[T], positions i32[T])
-> ()``

Writes row t's key and value, rounded to f16 (to nearest, ties to even), to the place of token positions[t] of table
row rows[t] (``ops.paging``). Position -1 is padding and writes nothing; neither does a row or a position that the
table cannot hold, nor a negative block. Exact.

``reference``   the op in plain PyTorch
``triton``      the op on CUDA
"""

from __future__ import annotations

from collections.abc import Mapping

from heliograph.ops.arguments import Call
from heliograph.ops.launch import Kernel, ParamBlock, Recorder, View, lowers
from heliograph.ops.paging import FIELDS, paging

KV_STORE = Kernel(
    "kv", "kv_store_f16",
    ParamBlock(
        ("k", "ptr"), ("v", "ptr"), ("cache", "ptr"), ("tables", "ptr"), ("rows", "ptr"), ("positions", "ptr"),
        ("k_token_stride", "u64"), ("k_head_stride", "u64"), ("v_token_stride", "u64"), ("v_head_stride", "u64"),
        *FIELDS,
    ),
)  # fmt: skip
KERNELS = (KV_STORE,)


@lowers("heliograph.kv_store.default")
def lower(recorder: Recorder, args: tuple[object, ...], keywords: Mapping[str, object], outs: tuple[View, ...]) -> None:
    call = Call("kv_store", ("k", "v", "cache", "layer", "tables", "rows", "positions"), args, keywords)
    k, v, place = call.view("k", "f32", 3), call.view("v", "f32", 3), paging(call)
    tokens = k.shape[0]
    wanted = (tokens, place.kv_heads, place.dim)
    call.require(k.shape == v.shape == wanted, f"k {list(k.shape)}, v {list(v.shape)}", f"both {list(wanted)}")
    k_token, k_head = call.strides("k", k)
    v_token, v_head = call.strides("v", v)
    recorder.launch(
        KV_STORE, tokens, k=k, v=v, cache=place.cache, tables=place.tables, rows=call.vector("rows", "i32", tokens),
        positions=call.vector("positions", "i32", tokens), k_token_stride=k_token, k_head_stride=k_head,
        v_token_stride=v_token, v_head_stride=v_head, **place.fields(),
    )  # fmt: skip
