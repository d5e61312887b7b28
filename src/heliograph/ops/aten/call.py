"""One call of an ATen op on its way to launches, and the table entry of its lowering.

A lowering here is a function of the call and of the op's arguments under the names of PyTorch's schema, so that
defaults and keywords bind as PyTorch binds them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from heliograph.errors import UnsupportedOpError
from heliograph.ops.aten.element import CODES
from heliograph.ops.aten.strided import MAX_RANK, Walk, walk
from heliograph.ops.launch import Lowering, Recorder, View, lowers

Body = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Call:
    """The op's name, where its launches go, and the tensors it returns."""

    name: str
    recorder: Recorder
    outs: tuple[View, ...]
    args: tuple[object, ...]

    @property
    def out(self) -> View:
        return self.outs[0]

    def refusal(self, found: str, required: str) -> UnsupportedOpError:
        tensors = ", ".join(f"{view.dtype}{list(view.shape)}" for view in _views(self.args))
        return UnsupportedOpError(
            f"lowering {self.name} of {tensors or 'no tensor'}",
            found=found,
            required=required,
            hint="write it with supported types and shapes (heliograph.ops.aten), or cast around it",
        )

    def require(self, holds: bool, found: str, required: str) -> None:
        if not holds:
            raise self.refusal(found, required)

    def walk(self, shape: Sequence[int], *operands: Sequence[int], reorder: bool = False) -> Walk:
        """Dimensions as kernels take them."""
        merged = walk(shape, operands, reorder=reorder)
        self.require(merged.rank <= MAX_RANK, f"{merged.rank} dimensions that do not merge", f"at most {MAX_RANK}")
        return merged

    def code(self, dtype: str) -> int:
        """An element type as kernels take it."""
        self.require(dtype in CODES, f"elements of type {dtype}", f"one of {', '.join(CODES)}")
        return CODES[dtype]

    def optional_code(self, view: View | None) -> int:
        return 0 if view is None else self.code(view.dtype)

    def axis(self, dim: int, rank: int) -> int:
        """A dimension counted from the front."""
        self.require(-max(rank, 1) <= dim < max(rank, 1), f"dimension {dim} of {rank}", "a dimension of the tensor")
        return dim + rank if dim < 0 else dim

    def real(self, *dtypes: str) -> None:
        """For kernels that compute in f32 only."""
        for dtype in dtypes:
            self.require(dtype in ("f32", "f16", "bf16"), f"elements of type {dtype}", "f32, f16 or bf16")


def _views(value: object) -> list[View]:
    if isinstance(value, View):
        return [value]
    return [view for item in value for view in _views(item)] if isinstance(value, (list, tuple)) else []


def aten(*names: str, in_place: bool = False) -> Callable[[Body], Body]:
    """Registers a lowering under op names without their namespace, such as ``add.Tensor``.

    ``in_place`` registers ``add_.Tensor`` too: the same launches, written to the first argument.
    """

    def register(body: Body) -> Body:
        for name in names:
            op, _, overload = name.partition(".")
            lowers(f"aten.{name}")(_fresh(f"aten.{name}", body))
            if in_place:
                lowers(f"aten.{op}_.{overload}")(_into_first(f"aten.{op}_.{overload}", body))
        return body

    return register


def _fresh(name: str, body: Body) -> Lowering:
    def lowering(
        recorder: Recorder, args: tuple[object, ...], kwargs: Mapping[str, object], outs: tuple[View, ...]
    ) -> None:
        body(Call(name, recorder, outs, args), *args, **kwargs)

    return lowering


def _into_first(name: str, body: Body) -> Lowering:
    def lowering(
        recorder: Recorder, args: tuple[object, ...], kwargs: Mapping[str, object], outs: tuple[View, ...]
    ) -> None:
        target = args[0]
        if not isinstance(target, View):
            raise TypeError(f"{name} writes to {target!r}")
        body(Call(name, recorder, (target,), args), *args, **kwargs)

    return lowering
