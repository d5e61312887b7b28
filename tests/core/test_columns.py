"""graphs.safetensors as bytes: one valid form, which the safetensors library opens too; every lie is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load

import independent_reader
from heliograph.core.columns import read_columns, row_bytes, storage_order, write_columns
from heliograph.core.format import COLUMNS, MAX_GRAPHS_BYTES, MAX_HEADER_BYTES
from heliograph.errors import FormatError
from tiny_core import TinyCore, tiny_core

Header = dict[str, Any]
NUMPY = {"U8": np.uint8, "U32": np.uint32, "I32": np.int32, "U64": np.uint64, "I64": np.int64}


@pytest.fixture(scope="module")
def data(tiny: TinyCore) -> bytes:
    return tiny.graphs_bytes()


def split(data: bytes) -> tuple[Header, bytes]:
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def join(header: Header | bytes, body: bytes) -> bytes:
    """A file with this header, in canonical form if it is given as a value."""
    text = header if isinstance(header, bytes) else json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body


def refused(data: bytes) -> str:
    """The rule that both readers name. One checks types while it parses, so between M61 and M62 they may differ."""
    with pytest.raises(FormatError) as error:
        read_columns(data)
    with pytest.raises(independent_reader.Refused) as other:
        independent_reader.columns_of(data)
    form = {"M61", "M62"}
    assert other.value.rule == error.value.rule or {other.value.rule, error.value.rule} == form
    return error.value.rule


def test_every_column_comes_back(tiny: TinyCore, data: bytes) -> None:
    """M60 to M64"""
    columns = read_columns(data)
    assert list(columns) == storage_order()
    assert columns["param.bytes"] == b"".join(graph.nodes[3].params for graph in tiny.graphs)  # type: ignore[union-attr]
    assert all(columns[name].readonly and len(columns[name]) % row_bytes(name) == 0 for name in COLUMNS)
    assert write_columns({name: bytes(column) for name, column in columns.items()}) == data
    assert join(*split(data)) == data


def test_the_safetensors_library_opens_the_file(data: bytes) -> None:
    """M60 to M64"""
    opened = load(data)
    assert opened.keys() == COLUMNS.keys()
    for name, column in read_columns(data).items():
        dtype, trailing = COLUMNS[name]
        assert opened[name].dtype == NUMPY[dtype]
        assert opened[name].shape[1:] == trailing
        assert opened[name].tobytes() == column


def test_every_column_is_aligned_to_its_elements(data: bytes) -> None:
    """M64"""
    header, _ = split(data)
    start = 8 + int.from_bytes(data[:8], "little")
    for name, (dtype, _) in COLUMNS.items():
        assert (start + header[name]["data_offsets"][0]) % NUMPY[dtype]().itemsize == 0


def test_equal_graphs_give_equal_bytes() -> None:
    """M92"""
    assert tiny_core().graphs_bytes() == tiny_core().graphs_bytes()


def test_a_writer_that_names_another_column_or_half_a_row_is_stopped(data: bytes) -> None:
    columns = {name: bytes(column) for name, column in read_columns(data).items()}
    with pytest.raises(KeyError):
        write_columns(columns | {"node.colour": b""})
    with pytest.raises(ValueError, match=r"kernel\.grid"):
        write_columns(columns | {"kernel.grid": bytes(8)})


def change(name: str, **values: Any) -> Callable[[Header], Header]:
    return lambda header: header | {name: header[name] | values}


def rename(old: str, new: str) -> Callable[[Header], Header]:
    return lambda header: {new if name == old else name: value for name, value in header.items()}


def move(name: str, low: int, high: int) -> Callable[[Header], Header]:
    def moved(header: Header) -> Header:
        begin, end = header[name]["data_offsets"]
        return header | {name: header[name] | {"data_offsets": [begin + low, end + high]}}

    return moved


def exchange(first: str, second: str) -> Callable[[Header], Header]:
    return lambda header: (
        header
        | {
            first: header[first] | {"data_offsets": header[second]["data_offsets"]},
            second: header[second] | {"data_offsets": header[first]["data_offsets"]},
        }
    )


# One lie each about a file whose every other byte is right; D4 lists most of them.
HEADER_LIES: dict[str, tuple[str, Callable[[Header], Header]]] = {
    "a column is missing": ("M62", lambda header: {k: v for k, v in header.items() if k != "node.kind"}),
    "a column more": ("M62", lambda header: header | {"x": header["node.kind"]}),
    "a column under another name": ("M62", rename("node.kind", "node.kinds")),
    "a column name in another case": ("M62", rename("node.kind", "Node.kind")),
    "metadata": ("M62", lambda header: header | {"__metadata__": {"format": "pt"}}),
    "metadata in place of a column": ("M62", rename("node.kind", "__metadata__")),
    "a field more": ("M62", change("node.kind", x=1)),
    "a field less": ("M62", lambda header: header | {"node.kind": {"dtype": "U8", "shape": [10]}}),
    "a type that does not exist": ("M63", change("node.kind", dtype="U9")),
    "another type of the same size": ("M63", change("node.kind", dtype="I8")),
    "a float": ("M63", change("kernel.function", dtype="F32")),
    "a signed type": ("M63", change("kernel.function", dtype="I32")),
    "no extent": ("M63", change("node.kind", shape=[])),
    "an extent more": ("M63", change("node.kind", shape=[10, 1])),
    "an extent less": ("M63", change("kernel.grid", shape=[6])),
    "another trailing extent": ("M63", change("kernel.grid", shape=[3, 2])),
    "a row more": ("M64", change("node.kind", shape=[11])),
    "a row less": ("M64", change("node.kind", shape=[9])),
    "no row": ("M64", change("node.kind", shape=[0])),
    "rows whose bytes wrap at 64 bits": ("M62", change("kernel.grid", shape=[1 << 61, 3])),
    "rows without end": ("M62", change("node.kind", shape=[1 << 64])),
    "rows close to 2^53": ("M64", change("kernel.params", shape=[(1 << 53) - 1])),
    "a negative extent": ("M62", change("node.kind", shape=[-1])),
    "an extent that is a word": ("M62", change("node.kind", shape=["10"])),
    "a column that begins earlier": ("M64", move("node.kind", -1, 0)),
    "a column that ends later": ("M64", move("node.kind", 0, 1)),
    "a column that is moved": ("M64", move("node.kind", 1, 1)),
    "a column beyond the file": ("M64", move("node.kind", 1 << 40, 1 << 40)),
    "a negative offset": ("M62", change("node.kind", data_offsets=[-1, 9])),
    "three offsets": ("M62", change("node.kind", data_offsets=[0, 1, 2])),
    "begin and end exchanged": ("M64", lambda header: change(
        "node.kind", data_offsets=header["node.kind"]["data_offsets"][::-1])(header)),
    "two columns exchanged": ("M64", exchange("node.row", "node.order")),
    "two columns with the same bytes": ("M64", lambda header: change(
        "node.row", data_offsets=header["node.order"]["data_offsets"])(header)),
    "null for a column": ("M62", lambda header: header | {"node.kind": None}),
    "a list": ("M62", lambda header: []),  # type: ignore[arg-type, return-value]
}  # fmt: skip


@pytest.mark.parametrize("lie", HEADER_LIES)
def test_a_header_that_lies_is_refused(data: bytes, lie: str) -> None:
    """M62, M63, M64"""
    header, body = split(data)
    rule, tell = HEADER_LIES[lie]
    assert refused(join(tell(header), body)) == rule


def text_lies(header: bytes) -> dict[str, bytes]:
    pretty = json.dumps(json.loads(header), indent=1).encode()
    twice = header.replace(b"}}", b'},"node.row":' + json.dumps(json.loads(header)["node.row"]).encode() + b"}", 1)
    return {
        "white space": pretty,
        "keys out of order": json.dumps(dict(reversed(json.loads(header).items())), separators=(",", ":")).encode(),
        "a name twice": twice,
        "a fraction": header.replace(b'"shape":[', b'"shape":[0.5,', 1),
        "a byte order mark": b"\xef\xbb\xbf" + header,
        "no JSON": b"x" * len(header),
        "cut off": header[:-1],
        "something behind it": header + b"{}",
        "zeros behind it": header + b"\0" * 8,
        "an empty object and more": b"{}" + header,
        "deep nesting": b"[" * 1000 + b"]" * 1000,
        "a tab behind it": header + b"\t",
    }


@pytest.mark.parametrize("lie", sorted(text_lies(b'{"node.row":{}}')))
def test_a_header_in_another_form_is_refused(data: bytes, lie: str) -> None:
    """M61"""
    header, body = split(data)
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    assert refused(join(text_lies(text)[lie], body)) in {"M61", "M62"}


def test_eight_spaces_too_many_are_refused(data: bytes) -> None:
    """M61"""
    header, body = split(data)
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    assert refused(join(text + b" " * 8, body)) == "M61"


@pytest.mark.parametrize(
    "length", [0, 1, 4, 7, 9, 12, MAX_HEADER_BYTES + 8, 1 << 31, 1 << 32, (1 << 63) + 8, (1 << 64) - 8]
)
def test_a_header_length_that_lies_is_refused(data: bytes, length: int) -> None:
    """M60"""
    assert refused(length.to_bytes(8, "little") + data[8:]) == "M60"


def test_a_header_length_off_by_eight_is_refused(data: bytes) -> None:
    """M60, M61"""
    length = int.from_bytes(data[:8], "little")
    for wrong in (length - 8, length + 8):
        assert refused(wrong.to_bytes(8, "little") + data[8:]) in {"M61", "M62", "M64"}


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 100])
def test_a_file_cut_short_is_refused(data: bytes, size: int) -> None:
    """M60"""
    assert refused(data[:size]) == "M60"


@pytest.mark.parametrize("cut", [1, 8, 64])
def test_a_file_with_bytes_missing_or_more_at_its_end_is_refused(data: bytes, cut: int) -> None:
    """M64"""
    assert refused(data[:-cut]) == "M64"
    assert refused(data + bytes(cut)) == "M64"


def test_a_file_over_the_limit_is_refused_unread() -> None:
    """M60"""
    with pytest.raises(FormatError) as error:
        read_columns(np.memmap("/dev/zero", mode="r", shape=(MAX_GRAPHS_BYTES + 8,)).data)
    assert error.value.rule == "M60"


@settings(max_examples=300)
@given(st.data())
def test_no_flipped_header_byte_is_read(draw: st.DataObject) -> None:
    """M60 to M64"""
    data = tiny_core().graphs_bytes()
    length = 8 + int.from_bytes(data[:8], "little")
    altered = bytearray(data)
    altered[draw.draw(st.integers(0, length - 1))] ^= draw.draw(st.integers(1, 255))
    refused(bytes(altered))


@given(st.binary(max_size=200))
def test_no_bytes_crash_the_reader(data: bytes) -> None:
    """M60"""
    refused(data)
    refused(join(data, b""))
