"""The variables of a cubin, read from its symbols."""

from __future__ import annotations

import struct

import pytest

from heliograph.device.cubin import Variable, variables
from heliograph.errors import ModuleError

OBJECT, FUNC = 1, 2


def wide(number: int, escape: int) -> tuple[int, int]:
    """A number of a section as it is where there are 16 bits for it, and what is where there are more."""
    return (number, 0) if number < 0xFF00 else (escape, number)


def cubin(sections: dict[str, int], symbols: list[tuple[str, str, int, int, int]], alignment: int = 1) -> bytes:
    """An ELF file with sections (name to size) and symbols (name, section, offset, size, type)."""
    names = bytearray(b"\0")
    texts = bytearray(b"\0")

    def text(table: bytearray, name: str) -> int:
        at = len(table)
        table += name.encode() + b"\0"
        return at

    order = ["", ".strtab", ".symtab", ".symtab_shndx", *sections, ".shstrtab"]
    heads = {name: text(names, name) if name else 0 for name in order}
    table, owners = bytearray(24), bytearray(4)
    for name, section, offset, size, kind in symbols:
        short, owner = wide(order.index(section), 0xFFFF)
        table += struct.pack("<IBBHQQ", text(texts, name), kind, 0, short, offset, size)
        owners += struct.pack("<I", owner)
    count, all_of_them = wide(len(order), 0)
    last, the_last = wide(len(order) - 1, 0xFFFF)
    at, bodies, headers = 64, bytearray(), []
    for name in order:
        body = {".shstrtab": names, ".strtab": texts, ".symtab": table, ".symtab_shndx": owners}.get(name, b"")
        size = len(body) or sections.get(name, 0 if name else all_of_them)
        kind = {"": 0, ".symtab": 2, ".shstrtab": 3, ".strtab": 3, ".symtab_shndx": 18}.get(name, 1)
        link = {"": the_last, ".symtab": 1, ".symtab_shndx": 2}.get(name, 0)
        place = (at + len(bodies), size, link, 0, alignment, 24)
        headers.append(struct.pack("<IIQQQQIIQQ", heads[name], kind, 0, 0, *place))
        bodies += body
    start = at + len(bodies)
    ident = b"\x7fELF\2\1\1".ljust(16, b"\0")
    header = struct.pack("<16sHHIQQQIHHHHHH", ident, 2, 190, 1, 0, 0, start, 0, 64, 0, 0, 64, count, last)
    return header + bytes(bodies) + b"".join(headers)


def test_device_and_constant_variables_are_named_with_their_places() -> None:
    image = cubin(
        {".nv.global": 16, ".nv.global.init": 8, ".nv.constant3": 64, ".text.f": 128},
        [
            ("table", ".nv.constant3", 0, 64, OBJECT),
            ("runs", ".nv.global", 0, 4, OBJECT),
            ("last", ".nv.global", 8, 8, OBJECT),
            ("seed", ".nv.global.init", 0, 8, OBJECT),
            ("f", ".text.f", 0, 128, FUNC),
            ("label", ".nv.global", 0, 0, OBJECT),
        ],
        alignment=8,
    )
    found = variables(image)
    assert found.named == (
        Variable("table", ".nv.constant3", 0, 64),
        Variable("runs", ".nv.global", 0, 4),
        Variable("last", ".nv.global", 8, 8),
        Variable("seed", ".nv.global.init", 0, 8),
    )
    assert found.unnamed == ()


def test_bytes_that_no_symbol_reaches_are_told() -> None:
    assert variables(cubin({".nv.global": 4096}, [])).unnamed == ((".nv.global", 4096),)
    assert variables(cubin({".nv.global": 4096}, [("a", ".nv.global", 0, 4096, OBJECT)])).unnamed == ()
    assert variables(cubin({".nv.constant3": 4096}, [])).unnamed == (), "the image has them"


@pytest.mark.parametrize(
    ("places", "lost"),
    [
        ([(0, 4)], 252),  # behind the last variable
        ([(252, 4)], 252),  # before the first
        ([(0, 1), (8, 248)], 0),  # 7 bytes that align 8
        ([(0, 1), (9, 247)], 8),  # nothing is aligned at 9
        ([(0, 1), (16, 240)], 0),
        ([(0, 1), (32, 224)], 31),  # variables of this section are aligned at 16 at most
        ([(0, 64), (0, 250)], 0),  # one inside another; 6 bytes align the end
        ([(0, 128), (64, 192)], 0),
    ],
)
def test_bytes_that_align_a_variable_are_not_lost(places: list[tuple[int, int]], lost: int) -> None:
    symbols = [(f"v{number}", ".nv.global", *place, OBJECT) for number, place in enumerate(places)]
    unnamed = variables(cubin({".nv.global": 256}, symbols, alignment=16)).unnamed
    assert unnamed == (((".nv.global", lost),) if lost else ())


def test_an_image_of_more_sections_than_its_header_can_count_is_read() -> None:
    """From 65,280 on ELF has their number in the first section, and those of symbols in a table beside them."""
    many = {f".text.f{number}": 0 for number in range(65_300)}
    image = cubin({**many, ".nv.global": 16}, [("a", ".nv.global", 0, 16, OBJECT)])
    assert variables(image).named == (Variable("a", ".nv.global", 0, 16),)


def test_images_without_variables_have_none() -> None:
    assert variables(cubin({".text.f": 16, ".nv.constant0.f": 96}, [])) == variables(cubin({}, []))


@pytest.mark.parametrize("image", [b"", b"\x7fELF", b".version 9.0\n.target sm_90\n", cubin({}, [])[:-70]])
def test_what_is_no_complete_cubin_is_refused(image: bytes) -> None:
    with pytest.raises(ModuleError, match="cubin"):
        variables(image)
