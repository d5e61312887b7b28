"""Matrix products and convolutions in f32, f16, bf16, accumulated in f32 in one fixed order.

Tolerance against PyTorch: within RELATIVE of the product of magnitudes (|a| @ |b|), which holds one rounding of the
result to its type, plus the smallest f16.
"""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.ops.aten.call import Call, aten
from heliograph.ops.aten.element import Scalar
from heliograph.ops.aten.pointwise import blocks, copy_into
from heliograph.ops.aten.strided import expand, unsqueeze
from heliograph.ops.launch import Kernel, ParamBlock, View

RELATIVE = {"f32": 2.0**-19, "f16": 2.0**-10, "bf16": 2.0**-7}
TILE_ROWS, TILE_COLUMNS = 32, 16  # native/host/kernels/dots.h: kTileRows, kTileColumns

_MATMUL = Kernel(
    "aten_matmul", "matmul",
    ParamBlock(
        ("out", "ptr"), ("a", "ptr"), ("b", "ptr"), ("bias", "ptr"), ("batch", "u64"), ("m", "u64"), ("n", "u64"),
        ("k", "u64"), ("out_strides", "i64", 3), ("a_strides", "i64", 3), ("b_strides", "i64", 3),
        ("bias_strides", "i64", 3), ("alpha", "f64"), ("beta", "f64"), ("out_type", "u32"), ("a_type", "u32"),
        ("b_type", "u32"), ("bias_type", "u32"),
    ),
)  # fmt: skip
_CONV2D = Kernel(
    "aten_conv", "conv2d",
    ParamBlock(
        ("out", "ptr"), ("source", "ptr"), ("weight", "ptr"), ("bias", "ptr"), ("batch", "u64"), ("groups", "u64"),
        ("channels", "u64"), ("filters", "u64"), ("in_size", "i64", 2), ("window", "i64", 2), ("out_size", "i64", 2),
        ("stride", "i64", 2), ("padding", "i64", 2), ("dilation", "i64", 2), ("out_strides", "i64", 4),
        ("in_strides", "i64", 4), ("weight_strides", "i64", 4), ("bias_stride", "i64"), ("out_type", "u32"),
        ("in_type", "u32"), ("weight_type", "u32"), ("bias_type", "u32"),
    ),
)  # fmt: skip
KERNELS = (_MATMUL, _CONV2D)


def _product(
    call: Call, out: View, a: View, b: View, bias: View | None = None, alpha: Scalar = 1, beta: Scalar = 1
) -> None:
    """``out = alpha a @ b + beta bias`` over batches; all of rank 3."""
    call.real(out.dtype, a.dtype, b.dtype)
    if not out.numel:
        return
    batch, m, n = out.shape
    added = None if bias is None or beta == 0 else expand(bias, out.shape)
    call.recorder.launch(
        _MATMUL, batch * blocks(m, TILE_ROWS) * blocks(n, TILE_COLUMNS), out=out, a=a, b=b, bias=added, batch=batch,
        m=m, n=n, k=a.shape[2], out_strides=out.strides, a_strides=a.strides, b_strides=b.strides,
        bias_strides=() if added is None else added.strides, alpha=float(alpha), beta=float(beta),
        out_type=call.code(out.dtype), a_type=call.code(a.dtype), b_type=call.code(b.dtype),
        bias_type=call.optional_code(added),
    )  # fmt: skip


@aten("mm.default")
def lower_mm(call: Call, self: View, mat2: View) -> None:
    _product(call, unsqueeze(call.out, 0), unsqueeze(self, 0), unsqueeze(mat2, 0))


@aten("bmm.default")
def lower_bmm(call: Call, self: View, mat2: View) -> None:
    _product(call, call.out, self, mat2)


@aten("addmm.default", in_place=True)
def lower_addmm(call: Call, self: View, mat1: View, mat2: View, *, beta: Scalar = 1, alpha: Scalar = 1) -> None:
    _product(call, unsqueeze(call.out, 0), unsqueeze(mat1, 0), unsqueeze(mat2, 0), self, alpha, beta)


@aten("baddbmm.default", in_place=True)
def lower_baddbmm(call: Call, self: View, batch1: View, batch2: View, *, beta: Scalar = 1, alpha: Scalar = 1) -> None:
    _product(call, call.out, batch1, batch2, self, alpha, beta)


@aten("mv.default")
def lower_mv(call: Call, self: View, vec: View) -> None:
    """A product with one column."""
    column = unsqueeze(unsqueeze(vec, 1), 0)
    _product(call, unsqueeze(unsqueeze(call.out, 1), 0), unsqueeze(self, 0), column)


@aten("addmv.default", in_place=True)
def lower_addmv(call: Call, self: View, mat: View, vec: View, *, beta: Scalar = 1, alpha: Scalar = 1) -> None:
    column, out = (unsqueeze(unsqueeze(view, 1), 0) for view in (vec, call.out))
    _product(call, out, unsqueeze(mat, 0), column, unsqueeze(expand(self, call.out.shape), 1), alpha, beta)


@aten("dot.default")
def lower_dot(call: Call, self: View, tensor: View) -> None:
    row, column = unsqueeze(unsqueeze(self, 0), 0), unsqueeze(unsqueeze(tensor, 1), 0)
    _product(call, expand(call.out, (1, 1, 1)), row, column)


@aten("convolution.default")
def lower_convolution(
    call: Call,
    input: View,
    weight: View,
    bias: View | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> None:
    """One dimension is a row of two."""
    call.require(not transposed, "a transposed convolution", "a plain one")
    dims = len(weight.shape) - 2
    call.require(dims in (1, 2), f"{dims} dimensions", "1 or 2")
    call.real(input.dtype, weight.dtype, call.out.dtype)
    out = call.out
    if not out.numel:
        return
    if dims == 1:
        input, weight, out = unsqueeze(input, 2), unsqueeze(weight, 2), unsqueeze(out, 2)
    stride, padding, dilation = (
        (*(absent,) * (2 - dims), *_each(given, dims))
        for given, absent in ((stride, 1), (padding, 0), (dilation, 1))
    )  # fmt: skip
    if not weight.numel:
        copy_into(
            call,
            out,
            0
            if bias is None
            else View(bias.address, (*bias.shape, 1, 1), (*bias.strides, 0, 0), bias.dtype, bias.storage),
        )
        return
    filters = weight.shape[0] // groups
    positions = out.shape[2] * out.shape[3]
    call.recorder.launch(
        _CONV2D, out.shape[0] * groups * blocks(positions, TILE_COLUMNS) * blocks(filters, TILE_ROWS), out=out,
        source=input, weight=weight, bias=bias, batch=out.shape[0], groups=groups, channels=weight.shape[1],
        filters=filters, in_size=input.shape[2:], window=weight.shape[2:], out_size=out.shape[2:], stride=stride,
        padding=padding, dilation=dilation, out_strides=out.strides, in_strides=input.strides,
        weight_strides=weight.strides, bias_stride=0 if bias is None else bias.strides[0],
        out_type=call.code(out.dtype), in_type=call.code(input.dtype), weight_type=call.code(weight.dtype),
        bias_type=call.optional_code(bias),
    )  # fmt: skip


def _each(given: Sequence[int], dims: int) -> tuple[int, ...]:
    return tuple(given) if len(given) == dims else tuple(given) * dims
