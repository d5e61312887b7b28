"""The GGUF container: what is read is what the file states, and a file that states nonsense is refused."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from heliograph.errors import ModelError, ModelFileError, StorageError, UnsupportedModelError
from heliograph.models.gguf_file import Kind, open_gguf
from heliograph.models.gguf_metadata import Metadata

U32, U64 = struct.Struct("<I"), struct.Struct("<Q")


def text(value: bytes) -> bytes:
    return U64.pack(len(value)) + value


def value(key: bytes, kind: int, data: bytes) -> bytes:
    return text(key) + U32.pack(kind) + data


def array(kind: int, count: int, data: bytes) -> bytes:
    return U32.pack(kind) + U64.pack(count) + data


def tensor(name: bytes, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    extents = b"".join(U64.pack(extent) for extent in shape)
    return text(name) + U32.pack(len(shape)) + extents + U32.pack(kind) + U64.pack(offset)


VALUES = [
    value(b"general.architecture", Kind.STRING, text(b"llama")),
    value(b"llama.block_count", Kind.UINT32, U32.pack(3)),
    value(b"epsilon", Kind.FLOAT32, struct.pack("<f", 0.5)),
    value(b"flag", Kind.BOOL, b"\1"),
    value(b"names", Kind.ARRAY, array(Kind.STRING, 2, text(b"a") + text("é".encode()))),
    value(b"kinds", Kind.ARRAY, array(Kind.INT32, 3, struct.pack("<3i", 1, -2, 3))),
]
TENSORS = [
    tensor(b"first", (4, 2), 0, 0),  # 32 bytes
    tensor(b"second", (32, 3), 3, 32),  # 60 bytes, padded to 64
    tensor(b"third", (32,), 8, 96),  # 34 bytes
]
DATA = bytes(range(130))


def build(values: list[bytes] = VALUES, tensors: list[bytes] = TENSORS, data: bytes = DATA, version: int = 3) -> bytes:
    head = b"GGUF" + U32.pack(version) + U64.pack(len(tensors)) + U64.pack(len(values))
    head += b"".join(values) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + data


@pytest.fixture
def reading(tmp_path: Path) -> Callable[[bytes], Metadata]:
    def read(data: bytes) -> Metadata:
        path = tmp_path / "model.gguf"
        path.write_bytes(data)
        gguf = open_gguf(path)
        gguf.file.close()
        return Metadata(gguf)

    return read


def test_values_and_tensors_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(build())
    gguf = open_gguf(path)
    metadata = Metadata(gguf)
    assert metadata.text("general.architecture") == "llama"
    assert metadata.whole("llama.block_count") == 3
    assert metadata.number("epsilon") == 0.5
    assert metadata.truth("flag", False) is True
    assert metadata.texts("names") == ("a", "é")
    assert metadata.wholes("kinds") == (1, -2, 3)
    shapes = {name: (t.shape, t.layout.name, t.size) for name, t in gguf.tensors.items()}
    assert shapes == {
        "first": ((2, 4), "f32", 32), "second": ((3, 32), "q4_1", 60), "third": ((32,), "q8_0", 34)
    }  # fmt: skip
    assert [bytes(gguf.read(t)) for t in gguf.tensors.values()] == [DATA[:32], DATA[32:92], DATA[96:130]]
    gguf.file.close()


def test_file_padded_after_its_last_tensor_is_read(reading: Callable[[bytes], Metadata]) -> None:
    reading(build(data=DATA + bytes(30)))


def test_version_2_is_read(reading: Callable[[bytes], Metadata]) -> None:
    reading(build(version=2))


def test_file_cut_anywhere_is_refused(reading: Callable[[bytes], Metadata]) -> None:
    whole = build()
    reading(whole)
    for size in range(len(whole)):
        with pytest.raises(ModelFileError):
            reading(whole[:size])


@pytest.mark.parametrize("extra", [1, 29, 31, 4096])
def test_file_longer_than_its_header_says_is_refused(reading: Callable[[bytes], Metadata], extra: int) -> None:
    with pytest.raises(ModelFileError) as error:
        reading(build(data=DATA + bytes(extra)))
    assert str(len(build()) + extra) in error.value.found


EDGES = [0, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 32, 2**63 - 32, 2**63, 2**64 - 32, 2**64 - 16, 2**64 - 1]


@pytest.mark.parametrize("extent", EDGES)
@pytest.mark.parametrize("kind", [0, 1, 3, 8, 30])
@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_extent_near_a_power_of_two_is_refused(
    reading: Callable[[bytes], Metadata], extent: int, kind: int, place: int
) -> None:
    shape = [32, 32, 1, 1]
    shape[place] = extent
    with pytest.raises(ModelFileError):
        reading(build(tensors=[tensor(b"first", tuple(shape), kind, 0)]))


@pytest.mark.parametrize("offset", [32, 1, *EDGES[1:]])
def test_tensor_that_is_not_where_the_one_before_ends_is_refused(
    reading: Callable[[bytes], Metadata], offset: int
) -> None:
    with pytest.raises(ModelFileError):
        reading(build(tensors=[tensor(b"first", (4, 2), 0, offset)], data=bytes(32)))


@pytest.mark.parametrize("count", [*EDGES[1:], 1 << 20])
@pytest.mark.parametrize("place", [8, 16])
def test_count_that_the_file_cannot_hold_is_refused(
    reading: Callable[[bytes], Metadata], count: int, place: int
) -> None:
    data = bytearray(build())
    data[place : place + 8] = U64.pack(count)
    with pytest.raises(ModelFileError):
        reading(bytes(data))


@pytest.mark.parametrize("count", [500, *EDGES[1:]])
@pytest.mark.parametrize("kind", [k for k in Kind if k is not Kind.ARRAY])
def test_array_longer_than_the_file_is_refused(reading: Callable[[bytes], Metadata], count: int, kind: int) -> None:
    with pytest.raises(ModelFileError):
        reading(build(values=[value(b"long", Kind.ARRAY, array(kind, count, b""))], tensors=[], data=b""))


@pytest.mark.parametrize(
    ("values", "tensors"),
    [
        ([VALUES[0], VALUES[0]], TENSORS),
        (VALUES, [TENSORS[0], tensor(b"first", (8,), 0, 32)]),
        ([value(b"flag", Kind.BOOL, b"\2")], TENSORS),
        ([value(b"deep", Kind.ARRAY, array(Kind.ARRAY, 1, array(Kind.INT8, 0, b"")))], TENSORS),
        ([value(b"kind", 13, b"\0\0\0\0")], TENSORS),
        ([value(b"\xff\xfe", Kind.INT8, b"\0")], TENSORS),
        ([value(b"text", Kind.STRING, text(b"\xc3"))], TENSORS),
        ([value(b"general.alignment", Kind.UINT32, U32.pack(0))], TENSORS),
        ([value(b"general.alignment", Kind.UINT32, U32.pack(24))], TENSORS),
        ([value(b"general.alignment", Kind.UINT32, U32.pack(1 << 31))], TENSORS),
        ([value(b"general.alignment", Kind.UINT64, U64.pack(32))], TENSORS),
        (VALUES, [tensor(b"first", (), 0, 0)]),
        (VALUES, [tensor(b"first", (4, 2, 1, 1, 1), 0, 0)]),
        (VALUES, [tensor(b"first", (33, 1), 3, 0)]),
        (VALUES, [tensor(b"first", (32,), 4, 0)]),
        (VALUES, [tensor(b"first", (32,), 1 << 31, 0)]),
    ],
    ids=[
        "key twice", "tensor twice", "truth value of two", "array of arrays", "unknown value type", "key not UTF-8",
        "string not UTF-8", "no alignment", "odd alignment", "huge alignment", "alignment of another type",
        "no dimensions", "five dimensions", "part of a block", "removed tensor type", "unknown tensor type",
    ],
)  # fmt: skip
def test_nonsense_is_refused(reading: Callable[[bytes], Metadata], values: list[bytes], tensors: list[bytes]) -> None:
    with pytest.raises(ModelFileError):
        reading(build(values=values, tensors=tensors))


@pytest.mark.parametrize("version", [0, 1, 4, 3 << 24])
def test_other_versions_and_byte_orders_are_refused(reading: Callable[[bytes], Metadata], version: int) -> None:
    with pytest.raises(UnsupportedModelError) as error:
        reading(build(version=version))
    assert ("big-endian" in error.value.found) == (version == 3 << 24)


@pytest.mark.parametrize(("kind", "name"), [(2, "Q4_0"), (12, "Q4_K"), (14, "Q6_K"), (39, "MXFP4")])
def test_quantisation_that_is_not_built_is_refused_by_its_name(
    reading: Callable[[bytes], Metadata], kind: int, name: str
) -> None:
    with pytest.raises(UnsupportedModelError) as error:
        reading(build(tensors=[tensor(b"first", (256, 1), kind, 0)]))
    assert name in error.value.found
    assert "'first'" in error.value.found


def test_changed_header_bytes_never_end_in_another_exception(reading: Callable[[bytes], Metadata]) -> None:
    whole = build()
    for at in range(len(whole) - len(DATA)):
        for change in (1, 0x80, 0xFF):
            data = bytearray(whole)
            data[at] ^= change
            with contextlib.suppress(ModelError):  # a changed name or shape of the same size is no fault
                reading(bytes(data))


@pytest.mark.parametrize("kind", [k for k in Kind if k is not Kind.UINT32])
def test_value_of_another_type_is_refused_when_it_is_read(reading: Callable[[bytes], Metadata], kind: Kind) -> None:
    data = {Kind.STRING: text(b"3"), Kind.ARRAY: array(Kind.UINT32, 1, U32.pack(3))}.get(kind)
    width = {
        Kind.UINT64: 8,
        Kind.INT64: 8,
        Kind.FLOAT64: 8,
        Kind.UINT16: 2,
        Kind.INT16: 2,
        Kind.INT32: 4,
        Kind.FLOAT32: 4,
    }
    metadata = reading(build(values=[value(b"count", kind, data or bytes(width.get(kind, 1)))]))
    with pytest.raises(ModelFileError) as error:
        metadata.whole("count")
    assert kind.name in error.value.found
    assert reading(build(values=[value(b"count", Kind.UINT32, U32.pack(3))])).whole("count") == 3


def test_missing_value_is_refused_by_its_name(reading: Callable[[bytes], Metadata]) -> None:
    with pytest.raises(ModelFileError) as error:
        reading(build()).texts("tokenizer.ggml.tokens")
    assert "tokenizer.ggml.tokens" in error.value.found


def test_file_that_is_not_there_is_an_error_of_storage(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        open_gguf(tmp_path / "nothing.gguf")


def test_folder_or_pipe_is_no_model_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        with pytest.raises(ModelFileError):
            open_gguf(tmp_path / name)
