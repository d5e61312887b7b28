"""The GGUF container: metadata, tensor table, tensor bytes. Knows nothing of models.

A file says how long everything in it is, so every length is compared with what is left of the file before it is
used. Python's integers do not wrap; the limits below only bound the work that a hostile header can ask for.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (version 2 and 3, little-endian).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from heliograph.errors import ModelFileError, UnsupportedModelError
from heliograph.models.source_file import SourceFile

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_ENTRIES = 1 << 16  # metadata values, tensors
MAX_NAME = 1 << 16  # bytes of a key or tensor name
MAX_STRING = 1 << 24  # bytes of one string value
MAX_DIMENSIONS = 4
MAX_EXTENT = 1 << 48
MAX_ALIGNMENT = 1 << 16
WINDOW = 1 << 20  # bytes of header read at once


class Kind(IntEnum):
    """Types of metadata values."""

    UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)


_CODES: Mapping[Kind, str] = {
    Kind.UINT8: "B", Kind.INT8: "b", Kind.UINT16: "H", Kind.INT16: "h", Kind.UINT32: "I", Kind.INT32: "i",
    Kind.FLOAT32: "f", Kind.BOOL: "B", Kind.UINT64: "Q", Kind.INT64: "q", Kind.FLOAT64: "d",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor type stores a row: blocks of ``block`` values in ``bytes`` bytes."""

    name: str
    block: int
    bytes: int


LAYOUTS: Mapping[int, Layout] = {
    0: Layout("f32", 1, 4),
    1: Layout("f16", 1, 2),
    3: Layout("q4_1", 32, 20),
    8: Layout("q8_0", 32, 34),
    30: Layout("bf16", 1, 2),
}
# Tensor types that exist but are not built, so that a refusal can name them.
OTHER_TYPES: Mapping[int, str] = {
    2: "Q4_0", 6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K",
    16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS",
    24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
    40: "NVFP4",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Value:
    """A metadata value with the type that the file states; of an array also the type of its items."""

    kind: Kind
    item: Kind | None
    value: object


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's place. ``shape`` is in row-major order: (rows, columns), the reverse of the file's."""

    name: str
    shape: tuple[int, ...]
    layout: Layout
    offset: int  # bytes from the start of the file
    size: int

    @property
    def row_bytes(self) -> int:
        return self.shape[-1] // self.layout.block * self.layout.bytes


class GgufFile:
    """A GGUF file whose header has been read and checked. Close it through ``file``."""

    def __init__(self, file: SourceFile, metadata: Mapping[str, Value], tensors: Mapping[str, TensorInfo]) -> None:
        self.file = file
        self.metadata = metadata
        self.tensors = tensors

    def read(self, tensor: TensorInfo) -> bytearray:
        return self.file.read(tensor.offset, tensor.size)


def open_gguf(path: Path) -> GgufFile:
    """Opens a file and reads its header; the tensors' bytes are read one by one later."""
    file = SourceFile(path)
    try:
        return _read_header(file)
    except BaseException:
        file.close()
        raise


class _Cursor:
    """A position in the header; every step is checked against the end of the file."""

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self._window = bytearray()
        self._start = 0  # of the window in the file
        self._at = 0  # in the window

    @property
    def position(self) -> int:
        return self._start + self._at

    @property
    def left(self) -> int:
        return self._file.size - self.position

    def take(self, size: int, what: str) -> bytes:
        if size > self.left:
            raise self._file.malformed(
                f"{what} of {size} bytes at byte {self.position}, {self.left} bytes before the end",
                "a file that holds what its header states", "the file is truncated or damaged: fetch it again",
            )  # fmt: skip
        if self._at + size > len(self._window):
            position = self.position
            self._window = self._file.read(position, min(max(size, WINDOW), self.left))
            self._start, self._at = position, 0
        self._at += size
        return bytes(self._window[self._at - size : self._at])

    def whole(self, size: int, what: str) -> int:
        """An unsigned integer of ``size`` bytes."""
        return int.from_bytes(self.take(size, what), "little")

    def string(self, what: str, limit: int) -> str:
        size = self.whole(8, f"length of {what}")
        if size > limit:
            raise self._file.malformed(f"{what} of {size} bytes", f"{limit} bytes at most")
        try:
            return self.take(size, what).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._file.malformed(f"{what} that is not UTF-8", "UTF-8 text") from error


def _read_header(file: SourceFile) -> GgufFile:
    cursor = _Cursor(file)
    magic = cursor.take(4, "the magic number")
    if magic != MAGIC:
        raise file.malformed(f"first bytes {magic!r}", f"{MAGIC!r}", "give a GGUF file or a Hugging Face folder")
    version = cursor.whole(4, "the version")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        found = f"version {swapped}, big-endian" if swapped in VERSIONS else f"version {version}"
        raise UnsupportedModelError(
            f"reading {file.path.name}", found=f"GGUF {found}", required="version 2 or 3, little-endian",
            hint="convert the model again with a current llama.cpp",
        )  # fmt: skip
    tensor_count = cursor.whole(8, "the number of tensors")
    value_count = cursor.whole(8, "the number of metadata values")
    for what, count in (("tensors", tensor_count), ("metadata values", value_count)):
        if count > MAX_ENTRIES:
            raise file.malformed(f"{count} {what}", f"{MAX_ENTRIES} at most")
    metadata: dict[str, Value] = {}
    for _ in range(value_count):
        key = cursor.string("a metadata key", MAX_NAME)
        if key in metadata:
            raise file.malformed(f"metadata key {key!r} twice", "each key once")
        metadata[key] = _read_value(file, cursor, key)
    return GgufFile(file, metadata, _read_tensors(file, cursor, tensor_count, _alignment(file, metadata)))


def _read_value(file: SourceFile, cursor: _Cursor, key: str) -> Value:
    kind = _kind(file, cursor, key)
    if kind is not Kind.ARRAY:
        return Value(kind, None, _read_scalar(file, cursor, key, kind))
    item = _kind(file, cursor, key)
    count = cursor.whole(8, f"length of {key!r}")
    if item is Kind.ARRAY:
        raise file.malformed(f"{key!r}, an array of arrays", "an array of numbers or strings")
    if item is Kind.STRING:
        if count > cursor.left // 8:  # each string has at least its length
            raise file.malformed(f"{key!r} with {count} strings", f"no more than {cursor.left} bytes can hold")
        return Value(kind, item, tuple(cursor.string(f"an item of {key!r}", MAX_STRING) for _ in range(count)))
    width = struct.calcsize("<" + _CODES[item])
    if count > cursor.left // width:
        raise file.malformed(f"{key!r} with {count} items", f"no more than {cursor.left} bytes can hold")
    items = struct.unpack(f"<{count}{_CODES[item]}", cursor.take(count * width, repr(key)))
    return Value(kind, item, tuple(map(bool, items)) if item is Kind.BOOL else items)


def _kind(file: SourceFile, cursor: _Cursor, key: str) -> Kind:
    number = cursor.whole(4, f"type of {key!r}")
    if number >= len(Kind):
        raise file.malformed(f"{key!r} of type {number}", f"a type below {len(Kind)}")
    return Kind(number)


def _read_scalar(file: SourceFile, cursor: _Cursor, key: str, kind: Kind) -> object:
    if kind is Kind.STRING:
        return cursor.string(repr(key), MAX_STRING)
    code = "<" + _CODES[kind]
    value: int | float = struct.unpack(code, cursor.take(struct.calcsize(code), repr(key)))[0]
    if kind is not Kind.BOOL:
        return value
    if value > 1:
        raise file.malformed(f"{key!r}, a truth value of {value}", "0 or 1")
    return bool(value)


def _alignment(file: SourceFile, metadata: Mapping[str, Value]) -> int:
    stated = metadata.get("general.alignment", Value(Kind.UINT32, None, 32))
    alignment = stated.value
    if stated.kind is not Kind.UINT32 or not isinstance(alignment, int):
        raise file.malformed(f"general.alignment of type {stated.kind.name}", "type UINT32")
    if alignment < 8 or alignment > MAX_ALIGNMENT or alignment & (alignment - 1):
        raise file.malformed(f"general.alignment {alignment}", f"a power of two from 8 to {MAX_ALIGNMENT}")
    return alignment


def _read_tensors(file: SourceFile, cursor: _Cursor, count: int, alignment: int) -> dict[str, TensorInfo]:
    stated = [_read_tensor(file, cursor) for _ in range(count)]
    start = _align(cursor.position, alignment)
    end = 0  # of the tensors so far, from `start`
    tensors: dict[str, TensorInfo] = {}
    for tensor in stated:
        if tensor.name in tensors:
            raise file.malformed(f"tensor {tensor.name!r} twice", "each tensor once")
        if tensor.offset != _align(end, alignment):
            raise file.malformed(
                f"tensor {tensor.name!r} at offset {tensor.offset}",
                f"offset {_align(end, alignment)}: tensors follow each other without gap or overlap",
            )
        end = tensor.offset + tensor.size
        tensors[tensor.name] = TensorInfo(tensor.name, tensor.shape, tensor.layout, start + tensor.offset, tensor.size)
    if file.size not in (start + end, start + _align(end, alignment)):
        raise _wrong_size(file, start + end)
    return tensors


def _read_tensor(file: SourceFile, cursor: _Cursor) -> TensorInfo:
    """One row of the tensor table; its offset still counts from the start of the data."""
    name = cursor.string("a tensor name", MAX_NAME)
    dimensions = cursor.whole(4, f"dimensions of {name!r}")
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise file.malformed(f"tensor {name!r} with {dimensions} dimensions", f"1 to {MAX_DIMENSIONS}")
    extents = struct.unpack(f"<{dimensions}Q", cursor.take(8 * dimensions, f"the shape of {name!r}"))
    number = cursor.whole(4, f"type of {name!r}")
    offset = cursor.whole(8, f"offset of {name!r}")
    layout = LAYOUTS.get(number)
    if layout is None:
        if number not in OTHER_TYPES:
            raise file.malformed(f"tensor {name!r} of type {number}", "a known tensor type")
        built = ", ".join(known.name.upper() for known in LAYOUTS.values())
        raise UnsupportedModelError(
            f"reading {file.path.name}", found=f"tensor {name!r} quantised as {OTHER_TYPES[number]}",
            required=f"one of {built}", hint="quantise the model again with llama-quantize, to Q4_1 or Q8_0",
        )  # fmt: skip
    values = 1
    for extent in extents:
        values *= extent
        if not 1 <= extent <= MAX_EXTENT or values > MAX_EXTENT:
            raise file.malformed(f"tensor {name!r} of shape {extents}", f"1 to {MAX_EXTENT} values")
    if extents[0] % layout.block:
        raise file.malformed(f"tensor {name!r} with rows of {extents[0]} values", f"a multiple of {layout.block}")
    return TensorInfo(name, tuple(reversed(extents)), layout, offset, values // layout.block * layout.bytes)


def _align(value: int, alignment: int) -> int:
    return (value + alignment - 1) // alignment * alignment


def _wrong_size(file: SourceFile, required: int) -> ModelFileError:
    what = "truncated" if file.size < required else "longer than its header says"
    return file.malformed(f"a file of {file.size} bytes", f"{required} bytes", f"the file is {what}: fetch it again")
