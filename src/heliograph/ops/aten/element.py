"""Element types: their codes in parameter blocks, PyTorch's promotion, and the type that a kernel computes in."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from heliograph.ops.launch import ITEM_BYTES, View

Scalar = int | float | bool
Operand = View | Scalar

# native/host/kernels/strided.h: Type
CODES: Mapping[str, int] = {
    "f32": 0, "f64": 1, "f16": 2, "bf16": 3, "i64": 4, "i32": 5, "i16": 6, "i8": 7, "u8": 8, "bool": 9,
}  # fmt: skip
FLOATS = ("f16", "bf16", "f32", "f64")
COMPUTES = ("f32", "f64", "i64")
_INTEGERS = ("u8", "i8", "i16", "i32", "i64")
_BOOL, _INTEGER, _FLOAT = range(3)


def category(dtype: str) -> int:
    """Bool, integer or floating, ascending."""
    return _BOOL if dtype == "bool" else _FLOAT if dtype in FLOATS else _INTEGER


def is_float(dtype: str) -> bool:
    return dtype in FLOATS


def promote(a: str, b: str) -> str:
    """The type that holds both, as ``torch.promote_types``."""
    if a == b:
        return a
    low, high = sorted((a, b), key=category)
    if category(low) != category(high):
        return high
    if category(a) == _FLOAT:
        return "f32" if {a, b} == {"f16", "bf16"} else max(a, b, key=FLOATS.index)
    if {a, b} == {"u8", "i8"}:
        return "i16"
    return max(a, b, key=_INTEGERS.index)


def result_type(*operands: Operand) -> str:
    """The type of an operation on tensors and numbers, as ``torch.result_type``.

    Tensors with dimensions decide; those without, and then Python numbers, only raise the category.
    """
    groups: list[str | None] = [None, None, None]
    for operand in operands:
        rank, dtype = _standing(operand)
        known = groups[rank]
        groups[rank] = dtype if known is None else promote(known, dtype)
    result = _raise(groups[0], _raise(groups[1], groups[2]))
    if result is None:
        raise TypeError("a result type of no operands")
    return result


def _standing(operand: Operand) -> tuple[int, str]:
    if isinstance(operand, View):
        return (0 if operand.shape else 1), operand.dtype
    return 2, "bool" if isinstance(operand, bool) else "i64" if isinstance(operand, int) else "f32"


def _raise(strong: str | None, weak: str | None) -> str | None:
    if strong is None or weak is None:
        return strong or weak
    if is_float(strong):
        return strong
    return promote(strong, weak) if strong == "bool" or is_float(weak) else strong


def compute_type(dtype: str) -> str:
    """What kernels compute elements of this type in: f64 for f64, f32 for other floats, i64 for integers and bool."""
    return "f64" if dtype == "f64" else "f32" if is_float(dtype) else "i64"


def rounded(value: Scalar, dtype: str) -> Scalar:
    """A number as an element of the type would hold it: integers wrap."""
    if dtype == "bool":
        return bool(value)
    if not is_float(dtype):
        bits = 8 * ITEM_BYTES[dtype]
        low = 0 if dtype == "u8" else -(1 << bits - 1)
        return (int(value) - low) % (1 << bits) + low
    number = float(value)
    if dtype == "f64" or number != number or number in (float("inf"), float("-inf")):
        return number
    try:
        if dtype == "bf16":
            bits = int.from_bytes(struct.pack("<f", number), "little")
            bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
            return float(struct.unpack("<f", bits.to_bytes(4, "little"))[0])
        code = "<e" if dtype == "f16" else "<f"
        return float(struct.unpack(code, struct.pack(code, number))[0])
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


def widens(dtype: str, common: str) -> bool:
    """Whether computing with elements of ``dtype`` as they are is the same as converting them to ``common`` first."""
    if is_float(common) and common not in ("f16", "bf16"):
        return True  # the compute type itself
    return promote(dtype, common) == common and not (is_float(common) and dtype in ("i16", "i32", "i64"))


def constant_bits(value: Scalar, compute: str) -> int:
    """A number as kernels of a compute type take it: an int64, or the bits of a double."""
    if compute == "i64":
        return int(value) & 0xFFFF_FFFF_FFFF_FFFF
    return int.from_bytes(struct.pack("<d", float(value)), "little")
