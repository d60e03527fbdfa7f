"""Adds a table of distances to a relocatable object: a constant that needs no compiler.

Layout: System V gABI, chapter 4. Changed tables (symbols, strings, section headers) are written to the end of the file. The old tables stay
in the file, unused.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from compcache.errors import CompileError, FormatError
from compcache.images.elf.parts import (
    ET_REL,
    SECTION,
    SHF_ALLOC,
    SHT_PROGBITS,
    SHT_RELA,
    SHT_SYMTAB,
    STB_GLOBAL,
    SYMBOL,
    align_up,
    object_symbols,
    read_header,
    read_linked_strings,
    read_sections,
    read_table,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from compcache.images.elf.parts import Section

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


def with_distances(data: bytes, symbol: str, head: bytes, names: Sequence[str], kind: int, own: Collection[str] = ()) -> bytes:
    """Return an object with an added constant: `head`, then the distances from the constant's start to symbols, four bytes each.

    Args:
        data: the object.
        symbol: the name of the constant, which becomes a protected symbol.
        head: the first bytes of the constant, a multiple of four.
        names: the symbols in the order of their distances. Symbols that the object does not have become hidden undefined symbols, which
            another object has to define.
        kind: the type of the relocations that store a distance in four bytes.
        own: the symbols that the code of the object defines.

    Raises:
        CompileError: the object has no symbol with a name that is in both `names` and `own`. LLVM changes the names of some symbols.
        FormatError: the object is malformed, has no symbol table, or has too many sections.
    """
    sections, number, titles = _require_tables(data)
    table, new_section = sections[number], len(sections)
    strings = {n: bytearray(read_linked_strings(data, tuple(sections), table._replace(link=n))) for n in {table.link, titles}}
    content = head + bytes(_WORD * len(names))
    symbols, numbers = _add_undefined(data, table, names, own, strings[table.link])
    symbols += SYMBOL.pack(
        _add_name(strings[table.link], symbol), STB_GLOBAL << 4 | _STT_OBJECT, _STV_PROTECTED, new_section, 0, len(content)
    )  # fmt: skip
    places = range(len(head), len(content), _WORD)
    relocations = b"".join([_RELOCATION.pack(at, kind, numbers[name], at) for at, name in zip(places, names, strict=True)])
    extended = _Extended(data)
    sections += [
        table._replace(
            name=_add_name(strings[titles], _SECTION_NAME), type=SHT_PROGBITS, flags=SHF_ALLOC, offset=extended.append(content),
            size=len(content), link=0, info=0, alignment=16, entry_size=0,
        ),
        table._replace(
            name=_add_name(strings[titles], _RELOCATIONS_NAME), type=SHT_RELA, flags=_SHF_INFO_LINK, offset=extended.append(relocations),
            size=len(relocations), link=number, info=new_section, entry_size=_RELOCATION.size,
        ),
    ]  # fmt: skip
    sections[number] = table._replace(offset=extended.append(symbols), size=len(symbols))
    for place, names_content in strings.items():
        sections[place] = sections[place]._replace(offset=extended.append(names_content), size=len(names_content))
    return extended.finish(sections)


def _require_tables(data: bytes) -> tuple[list[Section], int, int]:
    """Return the sections of an object, and the numbers of its symbol table and of the section with the names of sections.

    Raises:
        FormatError: see `with_distances`.
    """
    sections = [*read_sections(data, ET_REL)]
    number = next((number for number, section in enumerate(sections) if section.type == SHT_SYMTAB), None)
    titles = read_header(data).names_section
    if number is None or titles >= len(sections):
        raise FormatError(f"the object has no {'symbol table' if number is None else 'section names'}, so no symbols can be added to it")
    if len(sections) + 2 >= _MOST_SECTIONS:
        raise FormatError(f"the object has {len(sections)} sections, so no two sections can be added to it")
    return sections, number, titles


def _add_undefined(
    data: bytes, table: Section, names: Sequence[str], own: Collection[str], strings: bytearray
) -> tuple[bytearray, dict[str, int]]:
    """Return a symbol table with a hidden undefined symbol for each missing name, and the numbers of the symbols by name.

    The missing names are added to `strings`. Raise `CompileError` if a missing name is in `own`.
    """
    numbers = {symbol.name: (symbol.position - table.offset) // SYMBOL.size for symbol in object_symbols(data)}
    symbols = bytearray(read_table(data, table, SYMBOL))
    for name in names:
        if name not in numbers:
            if name in own:
                raise CompileError(
                    f"the object that LLVM emitted has no symbol {name!r}, although the code defines it: LLVM changes the symbols of some "
                    "calling conventions (vectorcall); give the function another calling convention, or make it internal"
                )
            numbers[name] = len(symbols) // SYMBOL.size
            symbols += SYMBOL.pack(_add_name(strings, name), STB_GLOBAL << 4, _STV_HIDDEN, 0, 0, 0)
    return symbols, numbers


def _add_name(strings: bytearray, name: str) -> int:
    """Add a name to a string table, and return its offset."""
    offset = len(strings)
    strings += name.encode("utf-8", "surrogateescape") + b"\0"
    return offset


class _Extended:
    """An object with parts appended at multiples of 16 bytes, because the parts that they replace cannot grow."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._parts: list[bytes | bytearray] = []
        self._end = len(data)

    def append(self, part: bytes | bytearray) -> int:
        """Append a part, aligned to 16 bytes, and return its offset in the file."""
        start = align_up(self._end, 16)
        self._parts += bytes(start - self._end), part
        self._end = start + len(part)
        return start

    def finish(self, sections: Sequence[Section]) -> bytes:
        """Append a table of sections, and return the bytes of the file, whose header refers to this table."""
        start = self.append(b"".join([SECTION.pack(*section) for section in sections]))
        header = bytearray(self._data[: _COUNT_AT + _COUNT.size])
        _PLACE.pack_into(header, _SECTIONS_AT, start)
        _COUNT.pack_into(header, _COUNT_AT, len(sections))
        return b"".join([header, memoryview(self._data)[len(header) :], *self._parts])
