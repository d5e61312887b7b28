"""Imports every op's folder: after it ``launch.LOWERINGS`` is full. Torch-free."""

from heliograph.ops import (  # noqa: F401
    add,
    aten,
    clear_padding,
    embedding,
    gather_rows,
    history_store,
    kv_store,
    linear,
    paged_attention,
    resolve_ids,
    rms_norm,
    rope,
    sample,
    silu_mul,
)
