"""Writes relocatable objects whose content needs no compiler.

Layout: System V gABI, chapter 4.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from compcache.images.elf.parts import ET_REL, RELOCATION, SHF_ALLOC, SHT_PROGBITS, SHT_RELA, SHT_SYMTAB, STB_GLOBAL, SYMBOL, StringTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = [
    "FILE_HEADER", "IDENT", "SECTION_HEADER", "SHF_INFO_LINK", "STT_OBJECT", "STV_HIDDEN", "STV_PROTECTED", "TABLE_SECTION",
    "DistanceTable", "elf_object", "table_object",
]  # fmt: skip

TABLE_SECTION = ".rodata.compcache"
_WORD = 4  # the size of a distance, in bytes
FILE_HEADER = Struct("<16sHHIQQQIHHHHHH")
SECTION_HEADER = Struct("<IIQQQQIIQQ")
IDENT = b"\x7fELF\x02\x01\x01"
SHF_INFO_LINK = 0x40
_SHT_STRTAB = 3
STT_OBJECT, STV_HIDDEN, STV_PROTECTED = 1, 2, 3


class DistanceTable(NamedTuple):
    """A constant: `head`, then the distances from the constant's start to symbols, four bytes each.

    Attributes:
        machine: the ELF number of the architecture.
        symbol: the name of the constant, which becomes a protected symbol.
        head: the first bytes of the constant, a multiple of four.
        names: the symbols in the order of their distances. Symbols of other objects become hidden undefined symbols.
        relocation_type: the type of the relocations that store a distance in four bytes.
    """

    machine: int
    symbol: str
    head: bytes
    names: Sequence[str]
    relocation_type: int

    def size(self) -> int:
        """Return the size of the constant, in bytes."""
        return len(self.head) + _WORD * len(self.names)

    def relocations(self, numbers: Mapping[str, int]) -> Iterator[tuple[int, int, int, int]]:
        """Yield the constant's relocations as (offset, type, symbol, addend). `numbers` has the numbers of the symbols by name."""
        for offset, name in zip(range(len(self.head), self.size(), _WORD), self.names, strict=True):
            yield offset, self.relocation_type, numbers[name], offset  # the addend makes the distance relative to the constant's start


def table_object(table: DistanceTable) -> bytes:
    """Return an object that contains a table alone."""
    strings = StringTable()
    numbers = {name: number for number, name in enumerate(dict.fromkeys(table.names), 2)}
    symbols = [
        bytes(SYMBOL.size),
        SYMBOL.pack(strings.add(table.symbol), STB_GLOBAL << 4 | STT_OBJECT, STV_PROTECTED, 1, 0, table.size()),
        *[SYMBOL.pack(strings.add(name), STB_GLOBAL << 4, STV_HIDDEN, 0, 0, 0) for name in numbers],
    ]
    relocations = [RELOCATION.pack(*relocation) for relocation in table.relocations(numbers)]
    sections = (
        (TABLE_SECTION, SHT_PROGBITS, SHF_ALLOC, table.head.ljust(table.size(), b"\0"), 0, 0, 16, 0),
        (f".rela{TABLE_SECTION}", SHT_RELA, SHF_INFO_LINK, b"".join(relocations), 4, 1, 8, RELOCATION.size),
        (".note.GNU-stack", SHT_PROGBITS, 0, b"", 0, 0, 1, 0),
        (".symtab", SHT_SYMTAB, 0, b"".join(symbols), 5, 1, 8, SYMBOL.size),
    )
    return elf_object(table.machine, sections, strings)


def elf_object(machine: int, sections: Sequence[tuple[str, int, int, bytes, int, int, int, int]], strings: StringTable) -> bytes:
    """Return an object file. Each section is (name, type, flags, content, link, info, alignment, size of an entry).

    The names of the sections are added to `strings`, which the file contains as its last section.
    """
    content = bytearray(FILE_HEADER.size)
    headers = [bytes(SECTION_HEADER.size)]
    name_offsets = [strings.add(name) for name in (*[name for name, *_ in sections], ".strtab")]
    string_table = (".strtab", _SHT_STRTAB, 0, bytes(strings.content), 0, 0, 1, 0)
    for name_offset, section in zip(name_offsets, (*sections, string_table), strict=True):
        _, section_type, flags, data, link, info, alignment, entry_size = section
        content += bytes(-len(content) % alignment)
        headers.append(SECTION_HEADER.pack(name_offset, section_type, flags, 0, len(content), len(data), link, info, alignment, entry_size))
        content += data
    content += bytes(-len(content) % 8)
    FILE_HEADER.pack_into(
        content, 0, IDENT, ET_REL, machine, 1, 0, 0, len(content), 0, FILE_HEADER.size, 0, 0, SECTION_HEADER.size, len(headers),
        len(name_offsets),
    )  # fmt: skip
    return bytes(content) + b"".join(headers)
