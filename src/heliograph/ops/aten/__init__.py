"""Lowerings of PyTorch's core ATen ops, for models that are not written with the ops of this package. Torch-free.

Importing this package fills the table of lowerings. In reading order:

``element``        element types: codes, promotion, what kernels compute in
``strided``        shapes and strides: broadcasting, views, merged dimensions
``call``           one call on its way to launches, and its table entry
``pointwise``      launches of pointwise kernels and of copies, any types and strides
``arithmetic``     arithmetic, comparison, logic, selection, functions
``copies``         copies and casts, joining, padding, repeating, filling
``indexing``       reading and writing at positions: embedding, index, gather, scatter
``reductions``     sums, extremes, any, all, variance, norms
``rows``           softmax, running sums, sorting
``normalization``  layer, group and batch normalisation
``products``       matrix products and convolutions
``windows``        pooling and resampling

Views (``view``, ``permute``, ``slice``, ``expand``, ...) and memory without values (``empty``) need no lowering: they
move no data. An op that writes to its first argument has the lowering of the op without underscore, where that one
allows it. Types are f32, f16, bf16 (computed in f32), i64, i32, i16, i8, u8, bool, and f64 where an op does not need
a kernel of its own. What no kernel takes is refused with the op, its types and shapes.

Must not import torch or numpy.
"""

from heliograph.ops.aten import (
    arithmetic,
    copies,
    indexing,
    normalization,
    pointwise,
    products,
    reductions,
    rows,
    windows,
)

KERNELS = (
    *pointwise.KERNELS,
    *indexing.KERNELS,
    *reductions.KERNELS,
    *rows.KERNELS,
    *normalization.KERNELS,
    *products.KERNELS,
    *windows.KERNELS,
)

__all__ = ["KERNELS", "arithmetic", "copies"]
