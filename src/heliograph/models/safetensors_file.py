"""The safetensors container, read from its raw header: the library takes the last of two equal names.

Checked as the format's README asks: a header that fits the file, known types, sizes that equal shape times type,
ranges that follow each other from the first byte of data to the last byte of the file.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from heliograph.errors import ModelFileError, UnsupportedModelError
from heliograph.models.source_file import SourceFile

MAX_HEADER = 100_000_000  # bytes, the format's own limit
MAX_VALUES = 1 << 48
TYPE_BYTES: Mapping[str, int] = {"F32": 4, "F16": 2, "BF16": 2}
OTHER_TYPES = frozenset({
    "BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "F6_E2M3", "F6_E3M2", "I16", "U16", "I32", "U32", "F64",
    "I64", "U64", "C64",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's place in a file."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # as the file writes it
    offset: int  # bytes from the start of the file
    size: int


class SafetensorsFile:
    """A safetensors file whose header has been read and checked. Close it through ``file``."""

    def __init__(self, file: SourceFile, tensors: Mapping[str, TensorInfo]) -> None:
        self.file = file
        self.tensors = tensors

    def read(self, tensor: TensorInfo) -> bytearray:
        return self.file.read(tensor.offset, tensor.size)


def open_safetensors(path: Path) -> SafetensorsFile:
    """Opens a file and reads its header; the tensors' bytes are read one by one later."""
    file = SourceFile(path)
    try:
        return SafetensorsFile(file, _read_header(file))
    except BaseException:
        file.close()
        raise


def _read_header(file: SourceFile) -> dict[str, TensorInfo]:
    size = int.from_bytes(file.read(0, 8), "little")
    if not 2 <= size <= MAX_HEADER or size > file.size - 8:
        raise file.malformed(
            f"a header of {size} bytes in a file of {file.size}", f"2 to {MAX_HEADER} bytes that the file holds",
            "the file is truncated or no safetensors file: fetch it again",
        )  # fmt: skip
    header = _parse(file, bytes(file.read(8, size)))
    header.pop("__metadata__", None)
    tensors = [_read_tensor(file, name, entry, 8 + size) for name, entry in header.items()]
    end = 8 + size
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.size)):
        if tensor.offset != end:
            kind = "overlaps the one before" if tensor.offset < end else "leaves a gap before it"
            raise file.malformed(f"tensor {tensor.name!r}, which {kind}", "tensors that follow each other")
        end += tensor.size
    if end != file.size:
        what = "truncated" if file.size < end else "longer than its header says"
        raise file.malformed(f"a file of {file.size} bytes", f"{end} bytes", f"the file is {what}: fetch it again")
    return {tensor.name: tensor for tensor in tensors}


def _parse(file: SourceFile, data: bytes) -> dict[str, object]:
    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) != len(pairs):
            (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
            raise file.malformed(f"{twice!r} twice in the header", "each name once")
        return found

    try:
        header = json.loads(data.decode("utf-8"), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise file.malformed("a header that is no JSON", "a JSON object") from error
    if data[:1] != b"{" or not isinstance(header, dict):
        raise file.malformed("a header that is no JSON object", "a JSON object from its first byte on")
    return header


def _read_tensor(file: SourceFile, name: str, entry: object, data: int) -> TensorInfo:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise file.malformed(f"tensor {name!r} described by {entry!r:.80}", "dtype, shape and data_offsets, no other")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in TYPE_BYTES:
        raise _wrong_type(file, name, dtype)
    if not _whole(shape) or not _whole(offsets) or len(offsets) != 2:
        raise file.malformed(f"tensor {name!r} of shape {shape!r:.80} at {offsets!r:.80}", "lists of whole numbers")
    values = 1
    for extent in shape:
        values *= extent
        if not 1 <= extent <= MAX_VALUES or values > MAX_VALUES:
            raise file.malformed(f"tensor {name!r} of shape {shape}", f"1 to {MAX_VALUES} values")
    begin, end = offsets
    if end - begin != values * TYPE_BYTES[dtype]:
        raise file.malformed(f"tensor {name!r} in {end - begin} bytes", f"{values * TYPE_BYTES[dtype]} bytes")
    return TensorInfo(name, tuple(shape), dtype, data + begin, end - begin)


def _whole(value: object) -> bool:
    """Whether a value is a list of numbers that are not negative. ``True`` is none."""
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _wrong_type(file: SourceFile, name: str, dtype: object) -> ModelFileError | UnsupportedModelError:
    if not isinstance(dtype, str) or dtype not in OTHER_TYPES:
        return file.malformed(f"tensor {name!r} of type {dtype!r:.40}", "a type that safetensors knows")
    return UnsupportedModelError(
        f"reading {file.path.name}", found=f"tensor {name!r} of type {dtype}",
        required=f"one of {', '.join(TYPE_BYTES)}", hint="save the model in float32, bfloat16 or float16",
    )  # fmt: skip
