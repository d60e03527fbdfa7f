"""Adds a table of distances to a relocatable object: a constant that needs no compiler.

Layout: System V gABI, chapter 4. Changed tables (symbols, strings, section headers) are written to the end of the file. The old tables stay
in the file, unused.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from compcache.errors import FormatError
from compcache.images.elf.parts import (
    ET_REL,
    SECTION,
    SHF_ALLOC,
    SHT_PROGBITS,
    SHT_RELA,
    SHT_SYMTAB,
    STB_GLOBAL,
    SYMBOL,
    read_header,
    read_linked_strings,
    read_sections,
    read_symbols,
    read_table,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["with_distances"]

_SECTION_NAME, _RELOCATIONS_NAME = ".rodata.compcache", ".rela.rodata.compcache"
_SHF_INFO_LINK = 0x40
_STT_OBJECT = 1
_STV_HIDDEN, _STV_PROTECTED = 2, 3
_RELOCATION = Struct("<QIIq")
_WORD = 4
_SECTIONS_AT, _COUNT_AT = 0x28, 0x3C  # in the header of the file
_PLACE, _COUNT = Struct("<Q"), Struct("<H")
#: Section numbers from this one on are reserved. Files with more sections store their numbers in another way.
_MOST_SECTIONS = 0xFF00


def with_distances(data: bytes, symbol: str, head: bytes, names: Sequence[str], kind: int) -> bytes:
    """Return the object with one more constant: `head`, then the distances from the constant's start to symbols, four bytes each.

    Args:
        data: the object.
        symbol: the name of the constant, which becomes a protected symbol.
        head: the first bytes of the constant, a multiple of four.
        names: the symbols in the order of their distances. Symbols that the object does not have become hidden undefined symbols, which
            another object has to define.
        kind: the type of the relocations that store a distance in four bytes.

    Raises:
        FormatError: the object is malformed, has no symbol table, or has too many sections.
    """
    sections = [*read_sections(data, ET_REL)]
    number = next((number for number, section in enumerate(sections) if section.type == SHT_SYMTAB), None)
    first = len(sections)
    titles = read_header(data).names_section
    if number is None or titles >= first:
        raise FormatError(f"the object has no {'symbol table' if number is None else 'section names'}, so no symbols can be added to it")
    if first + 2 >= _MOST_SECTIONS:
        raise FormatError(f"the object has {first} sections, which is too many to add two")
    table = sections[number]
    strings = {n: bytearray(read_linked_strings(data, tuple(sections), table._replace(link=n))) for n in {table.link, titles}}

    def add_name(section: int, name: str) -> int:
        offset = len(strings[section])
        strings[section] += name.encode("utf-8", "surrogateescape") + b"\0"
        return offset

    known = {
        known.name: (known.position - table.offset) // SYMBOL.size for known in read_symbols(data, tuple(sections), table)
    }  # fmt: skip
    symbols = bytearray(read_table(data, table, SYMBOL))
    for name in names:
        if name not in known:
            known[name] = len(symbols) // SYMBOL.size
            symbols += SYMBOL.pack(add_name(table.link, name), STB_GLOBAL << 4, _STV_HIDDEN, 0, 0, 0)
    content = head + bytes(_WORD * len(names))
    symbols += SYMBOL.pack(add_name(table.link, symbol), STB_GLOBAL << 4 | _STT_OBJECT, _STV_PROTECTED, first, 0, len(content))
    places = range(len(head), len(content), _WORD)
    relocations = b"".join([_RELOCATION.pack(at, kind, known[name], at) for at, name in zip(places, names, strict=True)])
    parts: list[bytes | bytearray | memoryview] = [data]
    end = len(data)

    def append(part: bytes | bytearray) -> int:
        nonlocal end
        start = -(-end // 16) * 16
        parts.extend((bytes(start - end), part))
        end = start + len(part)
        return start

    sections += [
        table._replace(
            name=add_name(titles, _SECTION_NAME), type=SHT_PROGBITS, flags=SHF_ALLOC, offset=append(content), size=len(content), link=0,
            info=0, alignment=16, entry_size=0,
        ),
        table._replace(
            name=add_name(titles, _RELOCATIONS_NAME), type=SHT_RELA, flags=_SHF_INFO_LINK, offset=append(relocations),
            size=len(relocations), link=number, info=first, entry_size=_RELOCATION.size,
        ),
    ]  # fmt: skip
    sections[number] = table._replace(offset=append(symbols), size=len(symbols))
    for place, given in strings.items():
        sections[place] = sections[place]._replace(offset=append(given), size=len(given))
    start = append(b"".join([SECTION.pack(*section) for section in sections]))
    head_of_file = bytearray(data[: _COUNT_AT + _COUNT.size])
    _PLACE.pack_into(head_of_file, _SECTIONS_AT, start)
    _COUNT.pack_into(head_of_file, _COUNT_AT, len(sections))
    parts[0:1] = [head_of_file, memoryview(data)[len(head_of_file) :]]
    return b"".join(parts)
