"""What a test needs to know of a shared object, read from its bytes."""

from __future__ import annotations

import struct
from dataclasses import dataclass

PT_LOAD, PT_DYNAMIC, PT_NOTE, PT_TLS, PT_GNU_STACK = 1, 2, 4, 7, 0x6474E551
DT_NEEDED, DT_SYMTAB, DT_STRTAB, DT_INIT, DT_FINI = 1, 6, 5, 12, 13
DT_TEXTREL, DT_INIT_ARRAY, DT_FINI_ARRAY, DT_PREINIT_ARRAY, DT_GNU_HASH = 22, 25, 26, 32, 0x6FFFFEF5
CONSTRUCTORS = {DT_INIT, DT_FINI, DT_INIT_ARRAY, DT_FINI_ARRAY, DT_PREINIT_ARRAY}
W, X = 2, 1


@dataclass(frozen=True, slots=True)
class Segment:
    kind: int
    flags: int
    offset: int
    address: int
    size: int


@dataclass(frozen=True, slots=True)
class Symbol:
    name: str
    defined: bool


class Elf:
    """A 64-bit little-endian shared object. Sections are not needed: the loader does not read them either."""

    def __init__(self, data: bytes) -> None:
        assert data[:6] == b"\x7fELF\x02\x01"
        self.data = data
        table, count = struct.unpack_from("<Q", data, 32)[0], struct.unpack_from("<H", data, 56)[0]
        self.segments = []
        for i in range(count):
            kind, flags, offset, address, _, size = struct.unpack_from("<IIQQQQ", data, table + 56 * i)
            self.segments.append(Segment(kind, flags, offset, address, size))
        self.dynamic = self._dynamic()
        self.symbols = self._symbols()

    def kinds(self) -> set[int]:
        return {segment.kind for segment in self.segments}

    def flags(self, kind: int) -> list[int]:
        return [segment.flags for segment in self.segments if segment.kind == kind]

    def _offset(self, address: int) -> int:
        for segment in self.segments:
            if segment.kind == PT_LOAD and segment.address <= address < segment.address + segment.size:
                return address - segment.address + segment.offset
        raise AssertionError(f"address {address:#x} is in no segment")

    def _dynamic(self) -> list[tuple[int, int]]:
        (segment,) = (segment for segment in self.segments if segment.kind == PT_DYNAMIC)
        entries = [struct.unpack_from("<QQ", self.data, segment.offset + 16 * i) for i in range(segment.size // 16)]
        return entries[: [tag for tag, _ in entries].index(0)]

    def _symbols(self) -> list[Symbol]:
        tags = dict(self.dynamic)
        names, table = self._offset(tags[DT_STRTAB]), self._offset(tags[DT_SYMTAB])
        found = []
        for i in range(1, (names - table) // 24 if names > table else 1):  # the linker puts names behind symbols
            name, _, _, section = struct.unpack_from("<IBBH", self.data, table + 24 * i)
            end = self.data.index(b"\0", names + name)
            found.append(Symbol(self.data[names + name : end].decode(), section != 0))
        return found


def unfit(data: bytes) -> list[str]:
    """Why a shared object is no freestanding kernel module; empty if it is one."""
    elf = Elf(data)
    tags = [tag for tag, _ in elf.dynamic]
    reasons = []
    if DT_NEEDED in tags:
        reasons.append("needed libraries")
    if CONSTRUCTORS & set(tags):
        reasons.append("constructors or destructors")
    if DT_TEXTREL in tags:
        reasons.append("relocations in code")
    if PT_TLS in elf.kinds():
        reasons.append("thread-local storage")
    if PT_NOTE in elf.kinds():
        reasons.append("a build id or another note")
    if any(flags & X for flags in elf.flags(PT_GNU_STACK)) or PT_GNU_STACK not in elf.kinds():
        reasons.append("an executable stack")
    if any(flags & W and flags & X for flags in elf.flags(PT_LOAD)):
        reasons.append("memory that is writable and executable")
    if any(not symbol.defined for symbol in elf.symbols):
        reasons.append("undefined symbols")
    if {symbol.name for symbol in elf.symbols if symbol.defined} != {"heliograph_module"}:
        reasons.append("other exported symbols than heliograph_module")
    return reasons
