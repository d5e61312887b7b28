"""Imports every op's Triton kernels: after it ``torch.ops.heliograph`` runs them on CUDA tensors. Needs torch and
triton. Imported by what captures on CUDA, and by nothing else."""

from __future__ import annotations

from functools import partial

from heliograph.ops import lowerings, references  # noqa: F401  the table of lowerings, the ops
from heliograph.ops.add import triton as _add  # noqa: F401
from heliograph.ops.clear_padding import triton as _clear_padding  # noqa: F401
from heliograph.ops.embedding import triton as _embedding  # noqa: F401
from heliograph.ops.gather_rows import triton as _gather_rows  # noqa: F401
from heliograph.ops.history_store import triton as _history_store  # noqa: F401
from heliograph.ops.kv_store import triton as _kv_store  # noqa: F401
from heliograph.ops.linear import triton as _linear  # noqa: F401
from heliograph.ops.paged_attention import triton as _paged_attention  # noqa: F401
from heliograph.ops.resolve_ids import triton as _resolve_ids  # noqa: F401
from heliograph.ops.rms_norm import triton as _rms_norm  # noqa: F401
from heliograph.ops.rope import triton as _rope  # noqa: F401
from heliograph.ops.sample import triton as _sample  # noqa: F401
from heliograph.ops.silu_mul import triton as _silu_mul  # noqa: F401
from heliograph.ops.triton_launch import run

OPS = (
    "add", "clear_padding", "embedding", "gather_rows", "history_store", "kv_store", "linear", "paged_attention",
    "resolve_ids", "rms_norm", "rope", "sample", "silu_mul",
)  # fmt: skip

for _name in OPS:
    getattr(getattr(references, _name), _name).register_kernel("cuda", partial(run, _name))
