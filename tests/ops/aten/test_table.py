"""The table of lowerings and kernels against PyTorch's schemas and the modules' own tables."""

from __future__ import annotations

import torch
from torch._ops import OpOverload

from heliograph.ops.aten import KERNELS
from heliograph.ops.launch import LOWERINGS

from ..harness import functions

FAMILIES = (
    "aten_pointwise", "aten_math", "aten_reduce", "aten_rows", "aten_matmul", "aten_conv", "aten_window", "aten_index",
)  # fmt: skip
NAMES = sorted(name for name in LOWERINGS if name.startswith("aten."))
# Core ops of the forward pass that are left out, with the reason a model's author is told.
LEFT_OUT = {
    "aten._adaptive_avg_pool3d.default": "three dimensions", "aten.avg_pool3d.default": "three dimensions",
    "aten.max_pool3d_with_indices.default": "three dimensions",
    "aten._cdist_forward.default": "distances", "aten._pdist_forward.default": "distances",
    "aten._embedding_bag.default": "bags", "aten.col2im.default": "folding", "aten.grid_sampler_2d.default": "sampling",
    "aten._fft_c2r.default": "complex numbers", "aten._fft_r2c.default": "complex numbers",
    "aten._local_scalar_dense.default": "a value read", "aten.nonzero.default": "a shape that depends on values",
    "aten.masked_scatter.default": "positions that depend on values",
    "aten._native_batch_norm_legit.default": "training", "aten.native_dropout.default": "random",
    "aten.rand.default": "random", "aten.randn.default": "random", "aten.randperm.default": "random",
}  # fmt: skip
# These are taken apart by PyTorch's core-ATen decompositions, or are another form of one that is not.
TAKEN_APART = {
    "aten.adaptive_avg_pool1d.default", "aten.avg_pool1d.default", "aten.atan2.out",
    "aten.reflection_pad1d.default", "aten.reflection_pad2d.default", "aten.reflection_pad3d.default",
    "aten.replication_pad2d.default", "aten.replication_pad3d.default", "aten.var.dim",
}  # fmt: skip
NO_DATA = {
    "aten.empty.memory_format", "aten.empty_strided.default", "aten.sym_numel.default", "aten.sym_size.int",
    "aten.sym_storage_offset.default", "aten.sym_stride.int", "aten.sym_is_contiguous.default",
}  # fmt: skip


def overload(name: str) -> OpOverload:
    _, op, kind = name.split(".")
    return getattr(getattr(torch.ops.aten, op), kind)  # type: ignore[no-any-return]


def test_lowerings_are_those_of_ops_which_compute() -> None:
    for name in NAMES:
        op = overload(name)
        assert not op.is_view, name
        assert op._schema.is_mutable == name.split(".")[1].endswith("_"), name


def test_every_forward_core_op_is_lowered_or_left_out_for_a_reason() -> None:
    core = {
        str(getattr(packet, kind))
        for packet in (getattr(torch.ops.aten, name) for name in dir(torch.ops.aten))
        if hasattr(packet, "overloads")
        for kind in packet.overloads()
        if torch.Tag.core in getattr(packet, kind).tags
    }
    views = {name for name in core if overload(name).is_view}
    open_ones = core - set(LOWERINGS) - views - NO_DATA - TAKEN_APART - set(LEFT_OUT)
    assert {name for name in open_ones if "backward" not in name} == set()
    assert not set(LEFT_OUT) & set(LOWERINGS)


def test_kernels_are_exactly_the_functions_of_the_modules(level: str) -> None:
    stated = {(family, name) for family in FAMILIES for name in functions(level, family)}
    assert stated == {(kernel.family, kernel.name) for kernel in KERNELS}
