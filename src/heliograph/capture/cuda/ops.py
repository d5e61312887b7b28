"""Which op, and which line of the model, launched each node of a capture; and the tensors that each op made.

A dispatch mode runs every op as it is and counts the nodes of the capturing graph after it. What was added between two
ops was launched outside PyTorch's dispatcher (a Triton kernel called by the model itself) and is said to be so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from heliograph._native import paint_stack
from heliograph.capture.storages import DTYPES
from heliograph.capture.trail import Trail, model_frame, stored_line


@dataclass(frozen=True, slots=True)
class Made:
    """A tensor's storage as an op left it: where it lies, and the tensor that it was made for."""

    address: int
    size: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OpSpan:
    """The nodes ``first`` to ``end`` - 1 of a graph, and the op that they belong to. ``made``: its new tensors."""

    first: int
    end: int
    path: str  # "layers.0.mlp/mm.1"
    origin: str  # "layers.0.mlp/mm.1 package/model.py:12"
    made: tuple[Made, ...]


class OpCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Entered while a bucket is captured. ``nodes`` says how many nodes the capturing graph has."""

    def __init__(self, trail: Trail, nodes: Callable[[], int], paint: int = 0) -> None:
        """paint: what unset bytes of the stack hold during each op; two captures that are compared take two values,
        so that bytes of kernel parameters which nobody sets differ between them."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._paint = paint
        self.spans: list[OpSpan] = []
        self._trail = trail
        self._nodes = nodes
        self._seen = 0
        self._last = "the beginning"

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        self._between(str(func))
        paint_stack(self._paint)
        result = func(*args, **kwargs)
        end = self._nodes()
        name = func._schema.name.rpartition("::")[2]
        if end > self._seen:
            path = self._trail.number(name)
            given = {_storage(tensor) for tensor in _tensors((args, kwargs)) if tensor.is_cuda}
            made = tuple(
                _made(tensor) for tensor in _tensors(result) if tensor.is_cuda and _storage(tensor) not in given
            )
            origin = f"{path} {stored_line(model_frame())}"
            self.spans.append(OpSpan(self._seen, end, path, origin, made))
        self._seen, self._last = end, name
        return result

    def close(self) -> None:
        """What came after the last op."""
        self._between("the end")

    def _between(self, following: str) -> None:
        now = self._nodes()
        if now > self._seen:
            path = self._trail.number("launch")
            line = stored_line(model_frame())
            origin = f"{path} between {self._last} and {following.removesuffix('.default')} {line}"
            self.spans.append(OpSpan(self._seen, now, path, origin, ()))
            self._seen = now


def _tensors(value: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _storage(tensor: Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def _made(tensor: Tensor) -> Made:
    address, size = _storage(tensor)
    dtype = DTYPES.get(tensor.dtype, "u8")
    return Made(address, size, dtype, tuple(tensor.shape) if tensor.dtype in DTYPES else (size,))
