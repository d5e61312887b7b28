"""exp, log, sin, cos, tanh, erf and the f16 and bf16 conversions over the whole range of f32."""

from __future__ import annotations

import struct
from pathlib import Path

import mpmath
import pytest
import torch
from torch import Tensor

from .compiled import compiled
from .harness import LEVELS, Function, functions_of

# The largest errors that elementary.h states, in units of the last place.
ULP = {"exp": 1.0, "log": 1.0, "sin": 1.6, "cos": 1.6, "tanh": 1.4, "erf": 1.2}
STEP = 4093  # every so many of the 2^32 numbers; a prime, so all mantissas and exponents occur


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Function]]:
    source, folder = Path(__file__).with_name("elementary.cpp"), tmp_path_factory.mktemp("elementary")
    return {level: functions_of(compiled(source, level, folder), level, "elementary") for level in LEVELS}


def run(function: Function, x: Tensor, dtype: torch.dtype) -> Tensor:
    out = torch.empty(x.shape, dtype=dtype)
    function.run(struct.pack("<QQQ", x.data_ptr(), out.data_ptr(), x.numel()), 0, 1)
    return out


def every(step: int) -> Tensor:
    """f32 numbers of all exponents and both signs, infinities and NaN too."""
    bits = torch.arange(0, 1 << 32, step, dtype=torch.int64)
    special = torch.tensor(
        [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-45, -1e-45, 88.7228, 88.7229, -103.98, 2.0**27]
    )
    numbers = torch.cat(((bits - (1 << 31)).to(torch.int32).view(torch.float32), special))
    return numbers[: len(numbers) // 16 * 16].contiguous()


def unit_in_last_place(x: Tensor) -> Tensor:
    exponent = torch.frexp(x.abs().clamp(min=2.0**-126)).exponent.double() - 1
    return torch.exp2(exponent - 23)


@pytest.mark.parametrize("name", ULP)
def test_function_is_within_its_stated_error(modules: dict[str, dict[str, Function]], level: str, name: str) -> None:
    x = every(STEP)
    got, want = run(modules[level][name], x, torch.float32), getattr(torch, name)(x.double())
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.isinf(), want.float().isinf())
    finite = want.float().isfinite()
    error = (got.double() - want).abs()[finite] / unit_in_last_place(want[finite])
    assert error.max() <= ULP[name]


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_angles_of_any_size_are_reduced_exactly(modules: dict[str, dict[str, Function]], level: str, name: str) -> None:
    """Against 400-bit arithmetic: the double-precision library is no witness for angles of 1e38."""
    x = every((1 << 32) // 1000 | 1)
    x = x[x.isfinite()][: len(x) // 32 * 16].contiguous()
    with mpmath.workprec(400):
        want = torch.tensor([float(getattr(mpmath, name)(mpmath.mpf(float(v)))) for v in x], dtype=torch.float64)
    error = (run(modules[level][name], x, torch.float32).double() - want).abs() / unit_in_last_place(want)
    assert error.max() <= ULP[name]


@pytest.mark.parametrize("name", ULP)
def test_one_number_and_sixteen_give_the_same_bits(
    modules: dict[str, dict[str, Function]], level: str, name: str
) -> None:
    x = every(STEP * 101)
    one, lanes = (run(modules[level][f"{name}{form}"], x, torch.float32) for form in ("_one", ""))
    assert torch.equal(one.isnan(), lanes.isnan())
    assert torch.equal(one[~one.isnan()].view(torch.int32), lanes[~one.isnan()].view(torch.int32))


@pytest.mark.parametrize("form", ["", "_one"])
@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_narrowing_rounds_to_nearest_even_and_widening_is_exact(
    modules: dict[str, dict[str, Function]], level: str, name: str, form: str
) -> None:
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16}[name]
    ties = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype).float()
    ties = torch.cat((ties, (ties[:-1] + ties[1:]) / 2))[: 1 << 16]
    for x in (every(STEP), ties.contiguous()):
        got = run(modules[level][f"narrow_{name}{form}"], x, torch.int16)
        assert got.view(dtype)[x.isnan()].isnan().all()
        assert torch.equal(got[~x.isnan()], x.to(dtype).view(torch.int16)[~x.isnan()])
    stored = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    wide = run(modules[level][f"widen_{name}{form}"], stored, torch.float32)
    want = stored.view(dtype).float()
    assert torch.equal(wide.isnan(), want.isnan())
    assert torch.equal(wide[~wide.isnan()].view(torch.int32), want[~want.isnan()].view(torch.int32))
