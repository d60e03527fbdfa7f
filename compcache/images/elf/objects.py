"""Writes relocatable objects whose content needs no compiler.

Layout: System V gABI, chapter 4.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from compcache.images.elf.parts import ET_REL, RELOCATION, SHF_ALLOC, SHT_PROGBITS, SHT_RELA, SHT_SYMTAB, STB_GLOBAL, SYMBOL, StringTable

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SHF_INFO_LINK", "elf_object", "table_object"]

_TABLE_SECTION, _WORD = ".rodata.compcache", 4  # the size of a distance
_FILE_HEADER = Struct("<16sHHIQQQIHHHHHH")
_SECTION_HEADER = Struct("<IIQQQQIIQQ")
_IDENT = b"\x7fELF\x02\x01\x01"
SHF_INFO_LINK = 0x40
_SHT_STRTAB, _STT_OBJECT, _STV_HIDDEN, _STV_PROTECTED = 3, 1, 2, 3


def table_object(machine: int, symbol: str, head: bytes, names: Sequence[str], kind: int) -> bytes:
    """Return an object with one constant: `head`, then the distances from the constant's start to symbols, four bytes each.

    Args:
        machine: the ELF number of the architecture.
        symbol: the name of the constant, which becomes a protected symbol.
        head: the first bytes of the constant, a multiple of four.
        names: the symbols in the order of their distances. They become hidden undefined symbols, which other objects have to define.
        kind: the type of the relocations that store a distance in four bytes.
    """
    size = len(head) + _WORD * len(names)
    strings = StringTable()
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names), 2)}
    symbols = [
        bytes(SYMBOL.size),
        SYMBOL.pack(strings.add(symbol), STB_GLOBAL << 4 | _STT_OBJECT, _STV_PROTECTED, 1, 0, size),
        *[SYMBOL.pack(strings.add(name), STB_GLOBAL << 4, _STV_HIDDEN, 0, 0, 0) for name in numbers],
    ]
    relocations = [  # the addend makes the distance relative to the constant's start
        RELOCATION.pack(offset, kind, numbers[name], offset) for offset, name in zip(range(len(head), size, _WORD), names, strict=True)
    ]
    sections = (
        (_TABLE_SECTION, SHT_PROGBITS, SHF_ALLOC, head.ljust(size, b"\0"), 0, 0, 16, 0),
        (f".rela{_TABLE_SECTION}", SHT_RELA, SHF_INFO_LINK, b"".join(relocations), 4, 1, 8, RELOCATION.size),
        (".note.GNU-stack", SHT_PROGBITS, 0, b"", 0, 0, 1, 0),
        (".symtab", SHT_SYMTAB, 0, b"".join(symbols), 5, 1, 8, SYMBOL.size),
    )
    return elf_object(machine, sections, strings)


def elf_object(machine: int, sections: Sequence[tuple[str, int, int, bytes, int, int, int, int]], strings: StringTable) -> bytes:
    """Return an object file. Each section is (name, type, flags, content, link, info, alignment, size of an entry).

    The names of the sections are added to `strings`, which the file contains as its last section.
    """
    content = bytearray(_FILE_HEADER.size)
    headers = [bytes(_SECTION_HEADER.size)]
    names = [strings.add(name) for name in (*[name for name, *_ in sections], ".strtab")]
    string_table = (".strtab", _SHT_STRTAB, 0, bytes(strings.content), 0, 0, 1, 0)
    for name, section in zip(names, (*sections, string_table), strict=True):
        _, section_type, flags, data, link, info, alignment, entry_size = section
        content += bytes(-len(content) % alignment)
        headers.append(_SECTION_HEADER.pack(name, section_type, flags, 0, len(content), len(data), link, info, alignment, entry_size))
        content += data
    content += bytes(-len(content) % 8)
    _FILE_HEADER.pack_into(
        content, 0, _IDENT, ET_REL, machine, 1, 0, 0, len(content), 0, _FILE_HEADER.size, 0, 0, _SECTION_HEADER.size, len(headers),
        len(names),
    )  # fmt: skip
    return bytes(content) + b"".join(headers)
