"""Adds a table of distances to a relocatable object for a linker: a constant that needs no compiler.

The writer (`compcache.images.writer`) adds the table without changing the object.

Layout: System V gABI, chapter 4. Changed tables (symbols, strings, section headers) are written to the end of the file. Old tables stay.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from compcache.errors import CompileError, FormatError
from compcache.images.elf import parts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from compcache.images.elf.parts import Section

__all__ = ["WORD", "DistanceTable", "with_distances"]

_SECTION_NAME, _RELOCATIONS_NAME = ".rodata.compcache", ".rela.rodata.compcache"
_SHF_INFO_LINK = 0x40
STT_OBJECT = 1
STV_HIDDEN, STV_PROTECTED = 2, 3
WORD = 4  # the size of a distance, in bytes
_SECTIONS_AT, _COUNT_AT = 0x28, 0x3C  # in the header of the file
_PLACE, _COUNT = Struct("<Q"), Struct("<H")
#: Section numbers from this one on are reserved. Files with more sections store their numbers in another way.
_MOST_SECTIONS = 0xFF00


class DistanceTable(NamedTuple):
    """A constant to be added to an object: `head`, then the distances from the constant's start to symbols, four bytes each.

    Attributes:
        symbol: the name of the constant, which becomes a protected symbol.
        head: the first bytes of the constant, a multiple of four.
        names: the symbols in the order of their distances. Symbols that the object does not have become hidden undefined symbols, which
            another object has to define.
        kind: the type of the relocations that store a distance in four bytes.
        own: the symbols that the code of the object defines.
    """

    symbol: str
    head: bytes
    names: Sequence[str]
    kind: int
    own: Collection[str] = ()

    def size(self) -> int:
        """Return the size of the constant, in bytes."""
        return len(self.head) + WORD * len(self.names)

    def missing(self, present: Collection[str]) -> list[str]:
        """Return the symbols, without repetitions, that an object with the symbols `present` does not have.

        Raise `CompileError` if the code of the object defines one of them. LLVM changes the names of some symbols.
        """
        missing = [name for name in dict.fromkeys(self.names) if name not in present]
        lost_name = next((name for name in missing if name in self.own), None)
        if lost_name is not None:
            raise CompileError(
                f"the object that LLVM emitted has no symbol {lost_name!r}, although the code defines it: LLVM changes the symbols of some "
                "calling conventions (vectorcall); give the function another calling convention, or make it internal"
            )
        return missing

    def relocations(self, numbers: Mapping[str, int]) -> Iterator[tuple[int, int, int, int]]:
        """Yield the constant's relocations as (offset, type, symbol, addend). `numbers` has the numbers of the symbols by name."""
        for offset, name in zip(range(len(self.head), self.size(), WORD), self.names, strict=True):
            yield offset, self.kind, numbers[name], offset  # the addend makes the distance relative to the constant's start


def with_distances(data: bytes, constant: DistanceTable) -> bytes:
    """Return an object file with a table of distances added as a constant.

    Raises:
        CompileError: see `DistanceTable.missing`.
        FormatError: the object is malformed, has no symbol table or no section names, or has too many sections.
    """
    sections, symbol_section, names_section = _require_tables(data)
    symbol_table, new_section = sections[symbol_section], len(sections)
    # Symbols and sections may have their names in one table of strings.
    strings = {
        link: bytearray(parts.read_linked_strings(data, tuple(sections), symbol_table._replace(link=link)))
        for link in {symbol_table.link, names_section}
    }
    content = constant.head.ljust(constant.size(), b"\0")
    symbols, numbers = _add_undefined(data, symbol_table, constant, strings[symbol_table.link])
    name = _add_name(strings[symbol_table.link], constant.symbol)
    symbols += parts.SYMBOL.pack(name, parts.STB_GLOBAL << 4 | STT_OBJECT, STV_PROTECTED, new_section, 0, len(content))
    relocations = b"".join([parts.RELOCATION.pack(*relocation) for relocation in constant.relocations(numbers)])
    extended = _ExtendedObject(data)
    sections += [
        symbol_table._replace(
            name=_add_name(strings[names_section], _SECTION_NAME), type=parts.SHT_PROGBITS, flags=parts.SHF_ALLOC,
            offset=extended.append(content), size=len(content), link=0, info=0, alignment=16, entry_size=0,
        ),
        symbol_table._replace(
            name=_add_name(strings[names_section], _RELOCATIONS_NAME), type=parts.SHT_RELA, flags=_SHF_INFO_LINK,
            offset=extended.append(relocations), size=len(relocations), link=symbol_section, info=new_section,
            entry_size=parts.RELOCATION.size,
        ),
    ]  # fmt: skip
    sections[symbol_section] = symbol_table._replace(offset=extended.append(symbols), size=len(symbols))
    for string_section, names_content in strings.items():
        sections[string_section] = sections[string_section]._replace(offset=extended.append(names_content), size=len(names_content))
    return extended.finish(sections)


def _require_tables(data: bytes) -> tuple[list[Section], int, int]:
    """Return the sections of an object, and the numbers of its symbol table and of the section with the names of sections.

    Raises:
        FormatError: see `with_distances`.
    """
    sections = [*parts.read_sections(data, parts.ET_REL)]
    symbol_section = next((number for number, section in enumerate(sections) if section.type == parts.SHT_SYMTAB), None)
    names_section = parts.read_header(data).names_section
    if symbol_section is None or names_section >= len(sections):
        lacking = "symbol table" if symbol_section is None else "section names"
        raise FormatError(f"the object has no {lacking}, so the module's table of distances cannot be added")
    if len(sections) + 2 >= _MOST_SECTIONS:
        raise FormatError(f"the object has {len(sections)} sections, but must have fewer than {_MOST_SECTIONS - 2}: divide the module")
    return sections, symbol_section, names_section


def _add_undefined(data: bytes, table: Section, constant: DistanceTable, strings: bytearray) -> tuple[bytearray, dict[str, int]]:
    """Return a symbol table with a hidden undefined symbol for each missing name, and the numbers of the symbols by name.

    The missing names are added to `strings`. See `with_distances` for the exceptions.
    """
    numbers = {symbol.name: (symbol.position - table.offset) // parts.SYMBOL.size for symbol in parts.object_symbols(data)}
    symbols = bytearray(parts.read_table(data, table, parts.SYMBOL))
    for name in constant.missing(numbers):
        numbers[name] = len(symbols) // parts.SYMBOL.size
        symbols += parts.SYMBOL.pack(_add_name(strings, name), parts.STB_GLOBAL << 4, STV_HIDDEN, 0, 0, 0)
    return symbols, numbers


def _add_name(strings: bytearray, name: str) -> int:
    """Add a name to a string table, and return its offset."""
    offset = len(strings)
    strings += name.encode("utf-8", "surrogateescape") + b"\0"
    return offset


class _ExtendedObject:
    """An object with parts appended at multiples of 16 bytes, because the parts that they replace cannot grow."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._parts: list[bytes | bytearray] = []
        self._end = len(data)

    def append(self, part: bytes | bytearray) -> int:
        """Append a part, aligned to 16 bytes, and return its offset in the file."""
        start = parts.align_up(self._end, 16)
        self._parts += bytes(start - self._end), part
        self._end = start + len(part)
        return start

    def finish(self, sections: Sequence[Section]) -> bytes:
        """Append a table of sections, and return the bytes of the file, whose header refers to this table."""
        start = self.append(b"".join([parts.SECTION.pack(*section) for section in sections]))
        header = bytearray(self._data[: _COUNT_AT + _COUNT.size])
        _PLACE.pack_into(header, _SECTIONS_AT, start)
        _COUNT.pack_into(header, _COUNT_AT, len(sections))
        return b"".join([header, memoryview(self._data)[len(header) :], *self._parts])
