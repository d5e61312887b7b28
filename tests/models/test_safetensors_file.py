"""The safetensors container: a header that lies is refused, one lie at a time."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from heliograph.errors import ModelError, ModelFileError, UnsupportedModelError
from heliograph.models.safetensors_file import SafetensorsFile, open_safetensors

HEADER = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
    "c": {"dtype": "F16", "shape": [2, 2], "data_offsets": [32, 40]},
}
DATA = bytes(range(40))


def build(header: object = HEADER, data: bytes = DATA) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def changed(name: str, **changes: object) -> bytes:
    return build({**HEADER, name: {**HEADER[name], **changes}})


Reading = Callable[[bytes], SafetensorsFile]


@pytest.fixture
def reading(tmp_path: Path) -> Reading:
    def read(data: bytes) -> SafetensorsFile:
        path = tmp_path / "model.safetensors"
        path.write_bytes(data)
        file = open_safetensors(path)
        file.file.close()
        return file

    return read


def test_tensors_are_those_that_the_library_wrote(tmp_path: Path) -> None:
    tensors = {"x": torch.arange(12.0).view(3, 4), "y": torch.arange(5).to(torch.bfloat16)}
    save_file(tensors, tmp_path / "model.safetensors")
    file = open_safetensors(tmp_path / "model.safetensors")
    assert {name: (t.shape, t.dtype) for name, t in file.tensors.items()} == {"x": ((3, 4), "F32"), "y": ((5,), "BF16")}
    for name, wanted in tensors.items():
        assert torch.equal(
            torch.frombuffer(file.read(file.tensors[name]), dtype=wanted.dtype).view(wanted.shape), wanted
        )
    file.file.close()


def test_file_cut_anywhere_is_refused(reading: Reading) -> None:
    whole = build()
    reading(whole)
    for size in range(len(whole)):
        with pytest.raises(ModelFileError):
            reading(whole[:size])


@pytest.mark.parametrize("extra", [1, 8, 4096])
def test_file_longer_than_its_header_says_is_refused(reading: Reading, extra: int) -> None:
    with pytest.raises(ModelFileError) as error:
        reading(build(data=DATA + bytes(extra)))
    assert str(len(build()) + extra) in error.value.found


@pytest.mark.parametrize("size", [0, 1, 2**31, 2**32, 2**63, 2**64 - 1, 100_000_001])
def test_header_length_that_the_file_cannot_hold_is_refused(reading: Reading, size: int) -> None:
    with pytest.raises(ModelFileError):
        reading(size.to_bytes(8, "little") + build()[8:])


EDGES = [-1, 0, 2**31, 2**32, 2**32 + 2, 2**63, 2**64, 2**64 + 2, 10**30]
LIES = {
    "overlap": changed("b", data_offsets=[16, 24]),
    "gap": build({**HEADER, "b": {"dtype": "BF16", "shape": [2], "data_offsets": [28, 32]}}),
    "not from the first byte": build({"a": {"dtype": "F32", "shape": [9], "data_offsets": [4, 40]}}),
    "two tensors in one place": build({**HEADER, "d": HEADER["c"]}),
    "too few bytes": changed("a", shape=[2, 4]),
    "too many bytes": changed("a", shape=[5]),
    "backwards": changed("a", data_offsets=[24, 0]),
    "three offsets": changed("a", data_offsets=[0, 12, 24]),
    "offsets as text": changed("a", data_offsets=["0", "24"]),
    "offset of true": changed("a", data_offsets=[False, 24]),
    "shape of floats": changed("a", shape=[2.0, 3.0]),
    "shape as number": changed("a", shape=6),
    "type of nothing": changed("a", dtype=None),
    "type as list": changed("a", dtype=["F32"]),
    "unknown type": changed("a", dtype="F31"),
    "another field": changed("a", more=1),
    "tensor as list": build({**HEADER, "a": [1]}),
    "field twice": build(json.dumps(HEADER).replace('"dtype": "F32"', '"dtype": "F32", "dtype": "F32"').encode()),
    "name twice": build(json.dumps(HEADER).encode()[:-1] + b', "c": ' + json.dumps(HEADER["c"]).encode() + b"}"),
    "list": build([1, 2]),
    "white space first": build(b" " + json.dumps(HEADER).encode()),
    "no JSON": build(b"{" * 40),
    "deep": build(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "long number": build(b'{"a": ' + b"9" * 10_000 + b"}"),
    "not UTF-8": build(b'{"\xff": 1}'),
    **{f"extent {edge}": changed("a", shape=[edge, 3]) for edge in EDGES},
    **{f"begin {edge}": changed("a", data_offsets=[edge, 24]) for edge in EDGES if edge},
    **{f"end {edge}": changed("a", data_offsets=[0, edge]) for edge in EDGES},
}


@pytest.mark.parametrize("lie", LIES)
def test_header_that_lies_is_refused(reading: Reading, lie: str) -> None:
    with pytest.raises(ModelFileError):
        reading(LIES[lie])


@pytest.mark.parametrize("dtype", ["F8_E4M3", "I64", "U8", "F64"])
def test_type_that_is_not_built_is_refused_by_its_name(reading: Reading, dtype: str) -> None:
    with pytest.raises(UnsupportedModelError) as error:
        reading(changed("a", dtype=dtype))
    assert dtype in error.value.found
    assert "'a'" in error.value.found


def test_changed_header_bytes_never_end_in_another_exception(reading: Reading) -> None:
    whole = build()
    for at in range(len(whole) - len(DATA)):
        for change in (1, 0x20, 0x80, 0xFF):
            data = bytearray(whole)
            data[at] ^= change
            with contextlib.suppress(ModelError):  # a changed name or shape of the same size is no fault
                reading(bytes(data))


@pytest.mark.parametrize("length", [*range(4087, 4106), *range(99_990, 100_002)])
def test_header_of_any_length_is_read(reading: Reading, length: int) -> None:
    text = json.dumps(HEADER).encode()
    assert set(reading(build(text.ljust(length))).tensors) == {"a", "b", "c"}
