"""Pointwise ops against PyTorch, over drawn shapes, strides, broadcasts and types."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from heliograph.errors import UnsupportedOpError
from heliograph.ops.aten.arithmetic import RELATIVE

from ..harness import LEVELS, examples, shuffled, singles_backwards
from ..memory import DTYPES
from .draws import EVERY, FLOATS, INTEGERS, SEEDS, SHAPES, generator, strided, thinned, values
from .harness import all_equal, aten, ours, same_bytes, theirs, within

ON_LEVELS = st.sampled_from(LEVELS)
NUMBERS = (*FLOATS, *INTEGERS)


def close(got: Tensor, want: Tensor) -> bool:
    """Within the stated tolerance of the larger of the result and 1."""
    scale = want.double().abs().clamp(min=1.0).nan_to_num(1.0, 1.0, 1.0)
    return within(got, want, RELATIVE[DTYPES[want.dtype]] * scale)


# ---- one operand ---------------------------------------------------------------------------------------------------
EXACT = {
    "neg": NUMBERS, "abs": NUMBERS, "sign": EVERY, "relu": NUMBERS, "floor": NUMBERS, "ceil": NUMBERS, "trunc": NUMBERS,
    "round": NUMBERS, "logical_not": EVERY, "isnan": EVERY, "isinf": EVERY, "bitwise_not": (*INTEGERS, torch.bool),
    "reciprocal": FLOATS,
}  # fmt: skip
CLOSE = {
    "exp": EVERY, "sqrt": EVERY, "log": EVERY, "sin": EVERY, "cos": EVERY, "tanh": EVERY, "erf": EVERY,
    "rsqrt": EVERY, "sigmoid": EVERY,
    "silu": FLOATS, "gelu": FLOATS, "expm1": EVERY, "exp2": EVERY, "log2": EVERY, "log10": EVERY, "log1p": EVERY,
    "tan": EVERY, "asin": EVERY, "acos": EVERY, "atan": EVERY, "sinh": EVERY, "cosh": EVERY, "asinh": EVERY,
    "acosh": EVERY, "atanh": EVERY, "elu": FLOATS, "leaky_relu": FLOATS, "hardtanh": FLOATS,
}  # fmt: skip


def with_specials(x: Tensor) -> Tensor:
    if x.is_floating_point() and x.numel() >= 4:
        x.view(-1)[:4] = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0])
    return x


@examples(250)
@given(name=st.sampled_from(sorted(EXACT)), data=st.data(), shape=SHAPES, seed=SEEDS, level=ON_LEVELS)
def test_exact_functions_give_what_pytorch_gives(
    name: str, data: st.DataObject, shape: tuple[int, ...], seed: int, level: str
) -> None:
    source = generator(seed)
    x = strided(with_specials(values(shape, data.draw(st.sampled_from(EXACT[name])), source)), source)
    op = getattr(aten, name).default
    assert all_equal(ours(op, x, level=level), theirs(op, x))


@examples(300)
@given(name=st.sampled_from(sorted(CLOSE)), data=st.data(), shape=SHAPES, seed=SEEDS, level=ON_LEVELS)
def test_functions_are_within_their_tolerance(
    name: str, data: st.DataObject, shape: tuple[int, ...], seed: int, level: str
) -> None:
    source = generator(seed)
    x = strided(with_specials(values(shape, data.draw(st.sampled_from(CLOSE[name])), source)), source)
    op = getattr(aten, name).default
    assert close(ours(op, x, level=level).out, theirs(op, x).out)


@examples(60)
@given(shape=SHAPES, dtype=st.sampled_from(FLOATS), seed=SEEDS, level=ON_LEVELS)
def test_activations_take_their_numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int, level: str) -> None:
    source = generator(seed)
    x = strided(values(shape, dtype, source), source)
    for op, args, kwargs in (
        (aten.gelu.default, (), {"approximate": "tanh"}),
        (aten.leaky_relu.default, (0.3,), {}),
        (aten.elu.default, (0.7, 1.3), {}),
        (aten.hardtanh.default, (-0.5, 1.5), {}),
    ):
        assert close(ours(op, x, *args, level=level, **kwargs).out, theirs(op, x, *args, **kwargs).out)


# ---- two and three operands ----------------------------------------------------------------------------------------
ANY_TYPE = (
    "add.Tensor", "mul.Tensor", "eq.Tensor", "ne.Tensor", "lt.Tensor", "le.Tensor", "gt.Tensor", "ge.Tensor",
    "minimum.default", "maximum.default", "logical_and.default", "logical_or.default", "logical_xor.default",
)  # fmt: skip
NUMBERS_ONLY = ("sub.Tensor", "fmod.Tensor", "remainder.Tensor", "div.Tensor")
WHOLE_ONLY = ("bitwise_and.Tensor", "bitwise_or.Tensor", "bitwise_xor.Tensor")


def overload(name: str) -> torch._ops.OpOverload:
    op, _, kind = name.partition(".")
    return getattr(getattr(aten, op), kind)  # type: ignore[no-any-return]


def allowed(name: str) -> tuple[torch.dtype, ...]:
    return EVERY if name in ANY_TYPE else NUMBERS if name in NUMBERS_ONLY else (*INTEGERS, torch.bool)


@examples(500)
@given(
    name=st.sampled_from(ANY_TYPE + NUMBERS_ONLY + WHOLE_ONLY), data=st.data(), shape=SHAPES, seed=SEEDS,
    level=ON_LEVELS,
)  # fmt: skip
def test_binary_ops_promote_and_broadcast_as_pytorch_does(
    name: str, data: st.DataObject, shape: tuple[int, ...], seed: int, level: str
) -> None:
    source = generator(seed)
    types = st.sampled_from(allowed(name))
    a, b = (values(s, data.draw(types), source) for s in (shape, thinned(shape, source)))
    if not b.is_floating_point() and name in NUMBERS_ONLY:
        b[b == 0] = 3  # PyTorch raises
    if data.draw(st.booleans()) and name not in NUMBERS_ONLY:
        a, b = b, a
    a, b = strided(a, source), strided(b, source)
    got, want = ours(overload(name), a, b, level=level), theirs(overload(name), a, b)
    assert all_equal(got, want) if want.out.dtype not in FLOATS else close(got.out, want.out)


@examples(300)
@given(
    name=st.sampled_from(("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "eq.Scalar", "lt.Scalar", "gt.Scalar",
                          "fmod.Scalar", "remainder.Scalar", "floor_divide.default", "rsub.Scalar")),
    dtype=st.sampled_from(NUMBERS), number=st.sampled_from((2, -3, 0.1, 1.5, -2.25, 7)), shape=SHAPES, seed=SEEDS,
    level=ON_LEVELS,
)  # fmt: skip
def test_numbers_join_tensors_as_in_pytorch(
    name: str, dtype: torch.dtype, number: float, shape: tuple[int, ...], seed: int, level: str
) -> None:
    source = generator(seed)
    x = values(shape, dtype, source)
    if name in ("eq.Scalar", "lt.Scalar", "gt.Scalar") and x.numel() and (number >= 0 or dtype.is_signed):
        x.view(-1)[0] = number
    x = strided(x, source)
    got, want = ours(overload(name), x, number, level=level), theirs(overload(name), x, number)
    if name == "floor_divide.default" and want.out.dtype in (torch.float16, torch.bfloat16):
        assert beside_an_integer(got.out, want.out, 1)
    else:
        assert all_equal(got, want) if want.out.dtype not in FLOATS else close(got.out, want.out)


def beside_an_integer(got: torch.Tensor, want: torch.Tensor, step: int) -> bool:
    """A quotient beside an integer may round to either side in half types, where PyTorch rounds before it floors."""
    return within(got, want, want.double().abs().nan_to_num(0.0, 0.0, 0.0) * 2.0**-7 + step)


@examples(120)
@given(
    name=st.sampled_from(("add.Tensor", "sub.Tensor")), dtype=st.sampled_from(NUMBERS),
    alpha=st.sampled_from((1, 2, -3)), shape=SHAPES, seed=SEEDS, level=ON_LEVELS,
)  # fmt: skip
def test_alpha_scales_the_second_operand(
    name: str, dtype: torch.dtype, alpha: int, shape: tuple[int, ...], seed: int, level: str
) -> None:
    source = generator(seed)
    a, b = (strided(values(shape, dtype, source), source) for _ in range(2))
    got, want = (run(overload(name), a, b, alpha=alpha) for run in (ours, theirs))
    if dtype in FLOATS:  # what is left after a cancellation is as exact as its terms were
        terms = (a.double().abs() + abs(alpha) * b.double().abs()).nan_to_num(0.0, 0.0, 0.0)
        assert within(got.out, want.out, terms * 4 * torch.finfo(dtype).eps)
    else:
        assert all_equal(got, want)


@examples(200)
@given(
    mode=st.sampled_from(("floor", "trunc", None)),
    dtypes=st.tuples(st.sampled_from(NUMBERS), st.sampled_from(NUMBERS)), shape=SHAPES, seed=SEEDS, level=ON_LEVELS,
)  # fmt: skip
def test_rounded_division(
    mode: str | None, dtypes: tuple[torch.dtype, torch.dtype], shape: tuple[int, ...], seed: int, level: str
) -> None:
    source = generator(seed)
    a, b = (values(shape, dtype, source) for dtype in dtypes)
    if not b.is_floating_point():
        b[b == 0] = 3
    got, want = (run(aten.div.Tensor_mode, a, b, rounding_mode=mode) for run in (ours, theirs))
    if mode is None or want.out.dtype in (torch.float16, torch.bfloat16):
        assert beside_an_integer(got.out, want.out, mode is not None)
    else:
        assert all_equal(got, want)


def test_division_by_integer_zero_gives_zero_and_no_fault() -> None:
    """PyTorch raises, and dies of the smallest integer divided by -1: neither is asked here."""
    a = torch.tensor([5, -5, -(2**63)])
    shaped = [torch.empty_like(a)]
    zero = torch.zeros_like(a)
    for op, kwargs in (
        (aten.div.Tensor_mode, {"rounding_mode": "floor"}),
        (aten.fmod.Tensor, {}),
        (aten.remainder.Tensor, {}),
    ):
        assert ours(op, a, zero, returns=shaped, **kwargs).out.tolist() == [0, 0, 0]
    minus_one = torch.full_like(a, -1)
    got = ours(aten.div.Tensor_mode, a, minus_one, returns=shaped, rounding_mode="trunc")
    assert got.out.tolist() == [-5, 5, -(2**63)]


@examples(200)
@given(
    dtype=st.sampled_from(NUMBERS), exponent=st.sampled_from((0, 1, 2, 3, 5, 0.5, -0.5, -1, 1.5, -2)), shape=SHAPES,
    seed=SEEDS, level=ON_LEVELS,
)  # fmt: skip
def test_powers(dtype: torch.dtype, exponent: float, shape: tuple[int, ...], seed: int, level: str) -> None:
    source = generator(seed)
    x = strided(values(shape, dtype, source), source)
    if exponent < 0 and dtype in INTEGERS:
        exponent = 4
    assert close_or_equal(
        ours(aten.pow.Tensor_Scalar, x, exponent, level=level).out, theirs(aten.pow.Tensor_Scalar, x, exponent).out
    )
    power = values(shape, torch.int64, source).abs() % 5
    y = power if dtype in INTEGERS else power.to(dtype) - 2
    assert close_or_equal(ours(aten.pow.Tensor_Tensor, x, y, level=level).out, theirs(aten.pow.Tensor_Tensor, x, y).out)
    assert close_or_equal(ours(aten.pow.Scalar, 3, y, level=level).out, theirs(aten.pow.Scalar, 3, y).out)


def close_or_equal(got: Tensor, want: Tensor) -> bool:
    return close(got, want) if want.is_floating_point() else torch.equal(got, want)


@examples(200)
@given(data=st.data(), shape=SHAPES, seed=SEEDS, level=ON_LEVELS)
def test_selection_is_exact(data: st.DataObject, shape: tuple[int, ...], seed: int, level: str) -> None:
    source = generator(seed)
    dtype = data.draw(st.sampled_from(EVERY))
    a, b = (strided(values(s, dtype, source), source) for s in (shape, thinned(shape, source)))
    mask = strided(values(thinned(shape, source), torch.bool, source), source)
    assert all_equal(ours(aten.where.self, mask, a, b, level=level), theirs(aten.where.self, mask, a, b))
    assert all_equal(
        ours(aten.masked_fill.Scalar, a, mask, 1, level=level), theirs(aten.masked_fill.Scalar, a, mask, 1)
    )
    if dtype != torch.bool:
        low, high = values((), dtype, source), values(shape, dtype, source)
        for args in ((1,), (None, 2), (-1, 2)):
            assert all_equal(ours(aten.clamp.default, a, *args, level=level), theirs(aten.clamp.default, a, *args))
        assert all_equal(ours(aten.clamp.Tensor, a, low, high, level=level), theirs(aten.clamp.Tensor, a, low, high))


@examples(80)
@given(
    dtype=st.sampled_from(EVERY), rows=st.integers(0, 9), columns=st.integers(0, 9), diagonal=st.integers(-9, 9),
    seed=SEEDS, level=ON_LEVELS,
)  # fmt: skip
def test_bands_of_a_matrix(dtype: torch.dtype, rows: int, columns: int, diagonal: int, seed: int, level: str) -> None:
    source = generator(seed)
    x = strided(values((2, rows, columns), dtype, source), source)
    for op in (aten.triu.default, aten.tril.default):
        assert all_equal(ours(op, x, diagonal, level=level), theirs(op, x, diagonal))


# ---- in place ------------------------------------------------------------------------------------------------------
IN_PLACE = {
    "add_.Tensor": "tensor", "sub_.Tensor": "tensor", "mul_.Tensor": "tensor", "div_.Tensor": "tensor",
    "lt_.Tensor": "tensor", "copy_.default": "tensor", "relu_.default": "none", "exp_.default": "none",
    "tril_.default": "none", "clamp_.default": "number", "fill_.Scalar": "number", "pow_.Scalar": "number",
    "masked_fill_.Scalar": "mask",
}  # fmt: skip


@examples(100)
@given(name=st.sampled_from(sorted(IN_PLACE)), seed=SEEDS, level=ON_LEVELS)
def test_in_place_forms_write_their_first_argument_and_return_nothing_fresh(name: str, seed: int, level: str) -> None:
    source = generator(seed)
    x = strided(values((3, 5, 17), torch.float32, source), source)
    args: tuple[object, ...] = {
        "none": (),
        "tensor": (strided(values((5, 17), torch.float32, source), source),),
        "number": (2,),
        "mask": (values((5, 17), torch.bool, source), -1.5),
    }[IN_PLACE[name]]
    got, want = ours(overload(name), x, *args, level=level), theirs(overload(name), x, *args)
    assert not got.outs
    assert close(got.tensors[0], want.tensors[0])
    assert all(torch.equal(a, b) for a, b in zip(got.tensors[1:], want.tensors[1:], strict=True))


# ---- any cut of the grid -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["exp", "sigmoid", "gelu", "tanh", "sin", "log1p", "pow", "silu"])
def test_an_element_has_the_same_bits_wherever_it_stands(level: str, name: str, seed: int) -> None:
    """Vector body and tail, contiguous and strided, and every cut of the grid round alike."""
    source = generator(seed)
    x = values((3, 5000), torch.float32, source).abs()
    args = (1.7,) if name == "pow" else ()
    op = aten.pow.Tensor_Scalar if name == "pow" else getattr(aten, name).default
    want = ours(op, x, *args, level=level).out
    for split in (singles_backwards, shuffled(seed)):
        assert same_bytes([ours(op, x, *args, level=level, split=split).out], [want])
    assert same_bytes([ours(op, strided(x, source), *args, level=level).out], [want])
    for start in (1, 4095, 4999):
        assert same_bytes([ours(op, x[:, start : start + 17], *args, level=level).out], [want[:, start : start + 17]])


def test_types_without_a_kernel_are_refused_with_op_and_shapes() -> None:
    x = torch.ones(2, 3, dtype=torch.uint32)
    with pytest.raises(UnsupportedOpError) as refused:
        ours(aten.elu.default, torch.ones(2, 3), 1.0, 1.0, 2.0)
    assert refused.value.doing == "lowering aten.elu.default of f32[2, 3]"
    assert refused.value.required == "input_scale 1"
    assert ours(aten.elu.default, torch.ones(2, 3), 1.0, 1.0, 1.0).out.shape == x.shape


def test_more_than_eight_dimensions_that_do_not_merge_are_refused() -> None:
    x = torch.randn((2,) * 9)
    gaps = torch.randn((4,) * 9)[(slice(0, 4, 2),) * 9]
    assert torch.equal(ours(aten.neg.default, x).out, -x)
    with pytest.raises(UnsupportedOpError) as refused:
        ours(aten.add.Tensor, x, gaps)
    assert refused.value.required == "at most 8"
