"""One call's arguments by name, with their types checked. What no kernel takes is refused, with the op's shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from heliograph.errors import UnsupportedOpError
from heliograph.ops.launch import View


@dataclass(frozen=True, slots=True)
class Rows:
    """A view as a matrix: ``count`` rows of ``columns`` contiguous elements, ``stride`` elements apart."""

    count: int
    columns: int
    stride: int


class Call:
    """The arguments of one call, positional or by keyword, under the names of the op's schema."""

    def __init__(self, op: str, names: Sequence[str], args: Sequence[object], keywords: Mapping[str, object]) -> None:
        self.op = op
        given = {**dict(zip(names, args, strict=False)), **keywords}
        self._values = {"real": None, **given} if "real" in names else given
        if len(args) > len(names) or self._values.keys() != set(names):
            raise self.refusal(f"arguments {sorted(self._values)}", f"exactly {', '.join(names)}")

    def refusal(self, found: str, required: str) -> UnsupportedOpError:
        """The error for a call that no kernel takes."""
        shapes = {
            name: f"{value.dtype}{list(value.shape)} strides {list(value.strides)}"
            for name, value in self._values.items()
            if isinstance(value, View)
        }
        return UnsupportedOpError(
            f"lowering heliograph::{self.op} of {shapes or 'no tensors'}",
            found=found,
            required=required,
            hint=f"see the shapes and types in heliograph.ops.{self.op}",
        )

    def view(self, name: str, dtype: str | Sequence[str], rank: int | Sequence[int]) -> View:
        """A tensor of one of the given types and ranks."""
        value = self._values[name]
        dtypes = (dtype,) if isinstance(dtype, str) else tuple(dtype)
        ranks = (rank,) if isinstance(rank, int) else tuple(rank)
        if not isinstance(value, View) or value.dtype not in dtypes or len(value.shape) not in ranks:
            found = f"{value.dtype}{list(value.shape)}" if isinstance(value, View) else repr(value)
            raise self.refusal(
                f"{name} {found}", f"{name} of type {' or '.join(dtypes)}, rank {' or '.join(map(str, ranks))}"
            )
        return value

    def contiguous(self, name: str, dtype: str | Sequence[str], rank: int | Sequence[int]) -> View:
        """A tensor as ``view`` takes it, without gaps."""
        value = self.view(name, dtype, rank)
        if not value.contiguous:
            raise self.refusal(f"{name} with strides {list(value.strides)}", f"{name} contiguous")
        return value

    def vector(self, name: str, dtype: str, length: int | None = None) -> View:
        """A contiguous tensor of rank 1, of a given length."""
        value = self.contiguous(name, dtype, 1)
        if length is not None:
            self.require(value.shape[0] == length, f"{name} of {value.shape[0]} elements", f"{length} elements")
        return value

    def optional_vector(self, name: str, dtype: str, length: int) -> View | None:
        return None if self._values[name] is None else self.vector(name, dtype, length)

    def real(self) -> View | None:
        """The op's ``real``, i32[1]: how many leading rows are no padding; None for all. Left out, it is None."""
        return self.optional_vector("real", "i32", 1)

    def integer(self, name: str) -> int:
        value = self._values[name]
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.refusal(f"{name} {value!r}", f"{name} an integer")
        return value

    def number(self, name: str) -> float:
        value = self._values[name]
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise self.refusal(f"{name} {value!r}", f"{name} a number")
        return float(value)

    def flag(self, name: str) -> bool:
        value = self._values[name]
        if not isinstance(value, bool):
            raise self.refusal(f"{name} {value!r}", f"{name} true or false")
        return value

    def text(self, name: str) -> str:
        value = self._values[name]
        if not isinstance(value, str):
            raise self.refusal(f"{name} {value!r}", f"{name} a string")
        return value

    def require(self, holds: bool, found: str, required: str) -> None:
        if not holds:
            raise self.refusal(found, required)

    def rows(self, name: str, view: View) -> Rows:
        """The view as rows of its last dimension. The leading dimensions have to collapse into one stride."""
        count, columns = math.prod(view.shape[:-1]), view.shape[-1]
        if count == 0:
            return Rows(0, columns, columns)  # whatever the strides, nothing is reached by them
        self.require(
            view.strides[-1] == 1 or columns <= 1, f"{name} strides {list(view.strides)}", f"{name} rows without gaps"
        )
        lead = [(n, s) for n, s in zip(view.shape[:-1], view.strides[:-1], strict=True) if n != 1]
        for (_, outer), (extent, inner) in pairwise(lead):
            self.require(
                outer == extent * inner, f"{name} strides {list(view.strides)}", f"{name} rows at equal distances"
            )
        return Rows(count, columns, lead[-1][1] if lead else columns)

    def strides(self, name: str, view: View) -> tuple[int, int]:
        """Token and head stride of a tensor [tokens, heads, dim] whose heads have no gaps inside."""
        self.require(
            view.strides[2] == 1 or view.shape[2] <= 1,
            f"{name} strides {list(view.strides)}",
            f"{name} heads without gaps",
        )
        return view.strides[0], view.strides[1]


def blocks(items: int, per_block: int) -> int:
    """How many blocks hold ``items``."""
    return -(-items // per_block)
