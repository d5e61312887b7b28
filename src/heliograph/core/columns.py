"""graphs.safetensors as bytes (docs/core-format.md 5, M60 to M64): the header, and nothing about what columns mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Final

import msgspec

from heliograph.core.encoding import decode, encode
from heliograph.core.format import COLUMNS, MAX_GRAPHS_BYTES, MAX_HEADER_BYTES
from heliograph.core.manifest import Count
from heliograph.core.refusal import refusal
from heliograph.errors import FormatError

ITEM_BYTES: Final[Mapping[str, int]] = {"U8": 1, "U32": 4, "I32": 4, "U64": 8, "I64": 8}
_LENGTH: Final = 8
_DOING: Final = "reading graphs.safetensors"


class ColumnHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the header says about one column."""

    dtype: str
    shape: tuple[Count, ...]
    data_offsets: tuple[Count, Count]


def storage_order() -> list[str]:
    """Column names as they lie in the data: largest elements first, then by name."""
    return sorted(COLUMNS, key=lambda name: (-ITEM_BYTES[COLUMNS[name][0]], name))


def row_bytes(name: str) -> int:
    dtype, trailing = COLUMNS[name]
    return ITEM_BYTES[dtype] * prod(trailing)


def write_columns(columns: Mapping[str, bytes]) -> bytes:
    """The file for columns given as little-endian bytes. The names must be those of the format."""
    if columns.keys() != COLUMNS.keys():
        raise KeyError(f"columns do not match the format: {sorted(columns.keys() ^ COLUMNS.keys())}")
    headers = {}
    at = 0
    for name in storage_order():
        dtype, trailing = COLUMNS[name]
        rows, rest = divmod(len(columns[name]), row_bytes(name))
        if rest:
            raise ValueError(f"column {name}: {len(columns[name])} bytes are no whole number of rows")
        end = at + len(columns[name])
        headers[name] = ColumnHeader(dtype=dtype, shape=(rows, *trailing), data_offsets=(at, end))
        at = end
    header = encode(headers)
    header += b" " * (-len(header) % 8)
    return b"".join((len(header).to_bytes(_LENGTH, "little"), header, *(columns[name] for name in storage_order())))


def read_columns(data: bytes | memoryview) -> dict[str, memoryview]:
    """Each column as a read-only memoryview of bytes into ``data``. FormatError for anything but the one valid form."""
    view = memoryview(data).toreadonly().cast("B")
    start = header_end(view)
    text = bytes(view[_LENGTH:start])
    trimmed = text.rstrip(b" ")
    if len(text) - len(trimmed) > 7:
        raise refusal(_DOING, f"{len(text) - len(trimmed)} spaces", "a header filled up with 0 to 7 spaces", "M61")
    try:
        headers = decode(trimmed, dict[str, ColumnHeader], _DOING)
    except FormatError as error:
        named = "M62" if error.rule == "M4" else "M61"
        raise refusal(_DOING, f"a header with {error.found}", error.required.rpartition(" (")[0], named) from error
    if headers.keys() != COLUMNS.keys():
        names = ", ".join(sorted(headers.keys() ^ COLUMNS.keys())[:5])
        raise refusal(_DOING, f"columns missing or unknown: {names}", "exactly the columns of the format", "M62")
    return dict(check_places(headers, view[start:]))


def header_end(view: memoryview) -> int:
    """Where the data begins."""
    if len(view) > MAX_GRAPHS_BYTES:
        raise refusal(_DOING, f"{len(view)} bytes", f"a file of at most {MAX_GRAPHS_BYTES} bytes", "M60")
    if len(view) < _LENGTH:
        raise refusal(_DOING, f"a file of {len(view)} bytes", "8 bytes of header length", "M60")
    length = int.from_bytes(view[:_LENGTH], "little")
    if length % 8 or not 8 <= length <= min(MAX_HEADER_BYTES, len(view) - _LENGTH):
        raise refusal(
            _DOING,
            f"a header length of {length} in a file of {len(view)} bytes",
            f"a multiple of 8 from 8 to {MAX_HEADER_BYTES} that ends within the file",
            "M60",
        )
    return _LENGTH + length


def check_places(headers: Mapping[str, ColumnHeader], data: memoryview) -> Iterator[tuple[str, memoryview]]:
    """Every column with its bytes. The offsets are recomputed from the shapes, so no other offsets can pass."""
    at = 0
    for name in storage_order():
        header = headers[name]
        dtype, trailing = COLUMNS[name]
        if header.dtype != dtype or header.shape[1:] != trailing or not header.shape:
            raise refusal(
                _DOING, f"column {name} of {header.dtype} {list(header.shape)}", f"{dtype} {['rows', *trailing]}", "M63"
            )
        end = at + header.shape[0] * row_bytes(name)
        if header.data_offsets != (at, end) or end > len(data):
            raise refusal(
                _DOING,
                f"column {name} at {list(header.data_offsets)} of {len(data)} bytes of data",
                f"[{at}, {end}]: one column behind the other, by size of element, then by name",
                "M64",
            )
        yield name, data[at:end]
        at = end
    if at != len(data):
        raise refusal(_DOING, f"{len(data) - at} bytes behind the last column", "a file that ends with it", "M64")
