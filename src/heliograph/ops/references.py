"""Imports every op's reference: after it ``torch.ops.heliograph`` is full. Needs torch."""

from heliograph.ops.add import reference as add  # noqa: F401
from heliograph.ops.clear_padding import reference as clear_padding  # noqa: F401
from heliograph.ops.embedding import reference as embedding  # noqa: F401
from heliograph.ops.gather_rows import reference as gather_rows  # noqa: F401
from heliograph.ops.history_store import reference as history_store  # noqa: F401
from heliograph.ops.kv_store import reference as kv_store  # noqa: F401
from heliograph.ops.linear import reference as linear  # noqa: F401
from heliograph.ops.paged_attention import reference as paged_attention  # noqa: F401
from heliograph.ops.resolve_ids import reference as resolve_ids  # noqa: F401
from heliograph.ops.rms_norm import reference as rms_norm  # noqa: F401
from heliograph.ops.rope import reference as rope  # noqa: F401
from heliograph.ops.sample import reference as sample  # noqa: F401
from heliograph.ops.silu_mul import reference as silu_mul  # noqa: F401
