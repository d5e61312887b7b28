"""What a kernel image says about its variables: a cubin is an ELF file, its symbols name what it brings."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from heliograph.errors import ModuleError

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMTAB, _SHNDX, _OBJECT, _WIDE = 2, 18, 1, 0xFFFF
_DEVICE = ".nv.global"  # sections of __device__ variables: kernels may have written to them
_VARIABLES = (_DEVICE, ".nv.constant3")  # and __constant__ ones: as in the image unless the host wrote to one by name


@dataclass(frozen=True, slots=True)
class Variable:
    """A named variable of an image. ``section`` tells ``__device__`` from ``__constant__``."""

    name: str
    section: str
    offset: int  # in its section
    size: int


@dataclass(frozen=True, slots=True)
class Variables:
    """``unnamed``: bytes for ``__device__`` variables that no symbol reaches, by section."""

    named: tuple[Variable, ...]
    unnamed: tuple[tuple[str, int], ...]


def variables(image: bytes) -> Variables:
    """The variables of a cubin. ModuleError for what is no ELF file, or one that ends early."""
    try:
        sections, names = _sections(image)
        wanted = {
            number: _text(names, section[0])
            for number, section in enumerate(sections)
            if _text(names, section[0]).startswith(_VARIABLES)
        }
        found = tuple(sorted(_variables(image, sections, wanted), key=lambda each: (each.section, each.offset)))
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise ModuleError(
            "reading the variables of a kernel image",
            found=f"{len(image)} bytes that are no complete ELF file",
            required="a cubin",
            hint="the image is damaged, or is PTX: capture on the GPU that it is to run on",
        ) from error
    unnamed = []
    for number, name in wanted.items():
        if not name.startswith(_DEVICE):
            continue
        size, alignment = sections[number][5], max(1, sections[number][8])
        lost = _unreached([(each.offset, each.size) for each in found if each.section == name], size, alignment)
        if lost:
            unnamed.append((name, lost))
    return Variables(found, tuple(unnamed))


def _unreached(variables: list[tuple[int, int]], size: int, alignment: int) -> int:
    """Bytes of a section in no variable (offset, size; ascending), but for those that align what is behind them."""
    lost = end = 0
    for offset, length in [*variables, (size, 0)]:
        gap, aligned = offset - end, min(alignment, offset & -offset or alignment)  # what the offset is a multiple of
        if gap >= aligned:
            lost += gap
        end = max(end, offset + length)
    return lost


def _sections(image: bytes) -> tuple[list[tuple[int, ...]], bytes]:
    header = _HEADER.unpack_from(image)
    if header[0][:4] != b"\x7fELF":
        raise ValueError("no ELF file")
    at, count, strings = header[6], header[12], header[13]
    first = _SECTION.unpack_from(image, at)  # with very many sections it says how many, and which has the names
    sections = [_SECTION.unpack_from(image, at + number * _SECTION.size) for number in range(count or first[5])]
    table = sections[first[6] if strings == _WIDE else strings]
    return sections, image[table[4] : table[4] + table[5]]


def _variables(image: bytes, sections: list[tuple[int, ...]], wanted: dict[int, str]) -> list[Variable]:
    found = []
    owners = {section[6]: section[4] for section in sections if section[1] == _SHNDX}  # where a symbol has no room
    for number, section in enumerate(sections):
        if section[1] != _SYMTAB:
            continue
        table = sections[section[6]]
        names = image[table[4] : table[4] + table[5]]
        for index in range(section[5] // _SYMBOL.size):
            name, info, _, owner, value, size = _SYMBOL.unpack_from(image, section[4] + index * _SYMBOL.size)
            if owner == _WIDE and number in owners:
                (owner,) = struct.unpack_from("<I", image, owners[number] + 4 * index)
            if info & 0xF == _OBJECT and owner in wanted and size:
                found.append(Variable(_text(names, name), wanted[owner], value, size))
    return found


def _text(table: bytes, at: int) -> str:
    return table[at : table.index(b"\0", at)].decode()
