"""Which op, and which line of the model, launched each node of a capture; and the tensors that each op made.

A dispatch mode runs every op as it is and counts the nodes of the capturing graph after it: what an op launches by
itself (a custom op, with a Triton kernel) is the op's. What was added between two ops was launched outside PyTorch's
dispatcher, by the model itself, and is said to be so, with the lines of both.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from heliograph._native import paint_stack
from heliograph.capture.storages import DTYPES
from heliograph.capture.trail import Trail, full_line, model_frame, stored_line
from heliograph.errors import CaptureError, UnsupportedOpError

NO_OP = "-"


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
        name, line = func._schema.name.rpartition("::")[2], stored_line(model_frame())
        if draws(func, args, kwargs):
            raise UnsupportedOpError(
                "recording the model",
                found=f"{func} at {full_line(model_frame())}, which draws random numbers",
                required="ops without random numbers: their seed would be what it was at capture, in every replay",
                hint="put the model into eval mode, or draw outside and hand the numbers in",
            )
        self._between(f"op {name} {line}")
        paint_stack(self._paint)
        result = func(*args, **kwargs)
        end = self._nodes()
        if end > self._seen:
            path = self._trail.number(name)
            given = {_storage(tensor) for tensor in _tensors((args, kwargs)) if tensor.is_cuda}
            made = tuple(
                _made(tensor) for tensor in _tensors(result) if tensor.is_cuda and _storage(tensor) not in given
            )
            self.spans.append(OpSpan(self._seen, end, path, f"{path} {line}", made))
        self._seen, self._last = end, f"op {name} {line}"
        return result

    def close(self) -> None:
        """What came after the last op."""
        self._between("the end")

    def _between(self, following: str) -> None:
        now = self._nodes()
        if now > self._seen:
            path = self._trail.number("launch")
            origin = f"{path} between {self._last} and {following}"
            self.spans.append(OpSpan(self._seen, now, path, origin, ()))
            self._seen = now


def draws(func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """Whether an op takes random numbers: attention does with dropout alone, other ops in training alone."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    stated = {each.name: each.default_value for each in func._schema.arguments}
    given = stated | dict(zip(stated, args, strict=False)) | dict(kwargs)
    return all(given.get(name, True) for name in ("dropout_p", "train", "training"))


def span_of(spans: Sequence[OpSpan], node: int) -> OpSpan | None:
    """The op that a node of the captured graph belongs to."""
    at = bisect_right(spans, node, key=lambda span: span.first) - 1
    return spans[at] if at >= 0 and node < spans[at].end else None


def origin_of(spans: Sequence[OpSpan], node: int) -> str:
    span = span_of(spans, node)
    return span.origin if span is not None else NO_OP


@contextmanager
def lines_told(graph: str, spans: Sequence[OpSpan]) -> Iterator[None]:
    """A refusal of nodes also tells the graph, and the op and line of each node that has one."""
    try:
        yield
    except CaptureError as error:
        if not error.nodes:
            raise
        raise with_lines(error, error.found, error.nodes, graph, spans) from error


def with_lines(
    error: CaptureError, found: str, nodes: Sequence[int], graph: str, spans: Sequence[OpSpan]
) -> CaptureError:
    """The same error, with the graph, and the op and line of each node behind what was found."""
    origins = dict.fromkeys(span.origin for node in nodes if (span := span_of(spans, node)) is not None)
    return type(error)(
        f"recording graph {graph!r}, {error.doing}",
        found=f"{found}, launched by {' and by '.join(origins)}" if origins else found,
        required=error.required,
        hint=error.hint,
    )


def _tensors(value: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _storage(tensor: Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def _made(tensor: Tensor) -> Made:
    address, size = _storage(tensor)
    dtype = DTYPES.get(tensor.dtype, "u8")
    return Made(address, size, dtype, tuple(tensor.shape) if tensor.dtype in DTYPES else (size,))
