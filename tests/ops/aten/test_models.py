"""Whole models, op by op: each op of the stream on our kernels, compared with PyTorch, its result carried on.

The stream is the one that a capture sees: views move nothing, what has a lowering is lowered, the rest is taken apart
by PyTorch's core-ATen decompositions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._decomp import core_aten_decompositions
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from heliograph.ops.launch import LOWERINGS

from ..harness import LEVELS, shuffled
from .harness import aten, ours, tensors_in
from .models import CASES, Case

DECOMPOSITIONS = core_aten_decompositions()
EMPTY = {aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default, aten.empty_strided.default}
# No computing: a constant enters, a check of metadata, a value that transformers reads unless it sees fake tensors.
NOT_DEVICE_WORK = {aten.lift_fresh.default, aten._assert_tensor_metadata.default, aten._local_scalar_dense.default}
# Of the largest value of a result: what one op's other order of accumulation or other rounding may change.
ONE_OP = {torch.float32: 2e-6, torch.float64: 1e-12, torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9}


class Interpreter(TorchDispatchMode):
    """Runs each op that computes on our kernels. ``lowered`` counts them by name; ``missing`` names those without."""

    def __init__(self, level: str, *, compute: bool = True) -> None:
        super().__init__()
        self.lowered: dict[str, int] = {}
        self.missing: set[str] = set()
        self._level = level
        self._compute = compute

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim" or func in EMPTY or func in NOT_DEVICE_WORK:
            return func(*args, **kwargs)
        if str(func) in LOWERINGS:
            return self._lower(func, args, kwargs)
        if func.is_view or torch.Tag.inplace_view in func.tags:
            return func(*args, **kwargs)
        if func in DECOMPOSITIONS or func._can_decompose():
            with self:
                if func in DECOMPOSITIONS:  # a table that fills itself: its `get` does not
                    return DECOMPOSITIONS[func](*args, **kwargs)
                return func.decompose(*args, **kwargs)
        self.missing.add(str(func))
        return func(*args, **kwargs)

    def _lower(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        self.lowered[str(func)] = self.lowered.get(str(func), 0) + 1
        if not self._compute:
            return func(*args, **kwargs)
        got = ours(func, *args, level=self._level, split=shuffled(len(self.lowered)), **kwargs)
        if func._schema.is_mutable:
            result = func(*args, **kwargs)
            self._carry(func, got.tensors, tensors_in((args, kwargs)))
        else:
            result = func(*args, **kwargs)
            self._carry(func, got.outs, tensors_in(result))
        return result

    def _carry(self, func: OpOverload, got: tuple[Tensor, ...], want: list[Tensor]) -> None:
        """Compares, then goes on with ours."""
        for a, b in zip(got, want, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape), func
            if b.is_floating_point():
                finite = b.isfinite()
                assert torch.equal(a.isfinite(), finite), func
                scale = float(b[finite].double().abs().max()) if finite.any() else 0.0
                assert float((a - b).double()[finite].abs().max() if finite.any() else 0.0) <= ONE_OP[b.dtype] * max(
                    scale, 1e-3
                ), func
            else:
                assert torch.equal(a, b), func
            if b.data_ptr() and not torch.equal(a, b):
                b.copy_(a)


@contextmanager
def as_captured() -> Iterator[None]:
    """Fixed while capturing: no gradients, plain attention."""
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        yield


def build(name: str, dtype: torch.dtype = torch.float32) -> Case:
    torch.manual_seed(20261130)
    case = CASES[name]()
    model = case.model.eval().to(dtype)
    for buffer in model.buffers():
        if buffer.is_floating_point() and buffer.dim() == 1:
            buffer.uniform_(0.5, 1.5)  # running statistics that are not those of a new model
    inputs = tuple(x.to(dtype) if x.is_floating_point() else x for x in case.inputs)
    return Case(model, inputs, case.output)


def call(case: Case, mode: FakeTensorMode | None = None) -> Tensor:
    """The model's result; with a fake mode, on tensors without values."""
    weights = {**dict(case.model.named_parameters()), **dict(case.model.named_buffers())}
    inputs = case.inputs
    if mode is not None:
        weights = {name: mode.from_tensor(tensor) for name, tensor in weights.items()}
        inputs = tuple(mode.from_tensor(tensor) for tensor in inputs)
    with mode or nullcontext():
        return case.output(torch.func.functional_call(case.model, weights, inputs))


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_op_of_the_model_has_a_lowering_or_moves_nothing(name: str) -> None:
    case = build(name)
    mode = FakeTensorMode()
    with as_captured(), Interpreter(LEVELS[0], compute=False) as interpreter:
        call(case, mode)
    assert interpreter.missing == set()
    assert len(interpreter.lowered) >= 4


@pytest.mark.parametrize("name", sorted(CASES))
def test_model_computes_on_our_kernels_what_it_computes_in_pytorch(name: str, level: str) -> None:
    case = build(name)
    with as_captured():
        want = call(case)
        with Interpreter(level) as interpreter:
            got = call(case)
    assert not interpreter.missing
    assert torch.allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["mlp", "llama", "cnn"])
def test_model_in_bf16_computes_op_by_op_what_pytorch_computes(name: str) -> None:
    case = build(name, torch.bfloat16)
    with as_captured(), Interpreter(LEVELS[0]) as interpreter:
        got = call(case)
    assert not interpreter.missing
    assert got.dtype == torch.bfloat16


def test_interpreter_notices_an_op_without_a_lowering_and_a_wrong_result(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), (torch.randn(3, 4),))
    with as_captured(), monkeypatch.context() as patched:
        patched.setitem(LOWERINGS, "aten.relu.default", LOWERINGS["aten.neg.default"])
        with pytest.raises(AssertionError, match="relu"), Interpreter(LEVELS[0]):
            call(case)
        patched.delitem(LOWERINGS, "aten.addmm.default")
        patched.delitem(LOWERINGS, "aten.relu.default")
        with Interpreter(LEVELS[0]) as interpreter:
            call(case)
    assert interpreter.missing == {"aten.addmm.default", "aten.relu.default"}
