"""Reads the parts of an ELF file in memory: 64-bit and little-endian only. No I/O.

Layout: System V gABI, https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html
(ELF header, sections and symbol tables in chapter 4, the dynamic section in chapter 5).

All functions use the section headers, so an image without section headers is refused. Malformed or truncated bytes
raise `FormatError`, and no other exception.
"""

from __future__ import annotations

from functools import lru_cache, partial, wraps
from itertools import takewhile
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from compcache.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_T = TypeVar("_T")

__all__ = [
    "ELF_MAGIC", "ET_DYN", "ET_REL", "RELOCATION", "SECTION", "SHF_ALLOC", "SHT_DYNAMIC", "SHT_DYNSYM", "SHT_NOBITS", "SHT_PROGBITS",
    "SHT_RELA", "SHT_SYMTAB", "STB_GLOBAL", "STB_WEAK", "SYMBOL", "Header", "Section", "StringTable", "Symbol", "align_up",
    "all_object_symbols", "dynamic_entries", "find_section", "is_elf", "names_and_sections", "object_symbols", "read_bytes",
    "read_header", "read_linked_strings", "read_sections", "read_string", "read_symbols", "read_table",
]  # fmt: skip

ELF_MAGIC = b"\x7fELF"
_CLASSES = {1: "32-bit", 2: "64-bit"}
_ENCODINGS = {1: "little-endian", 2: "big-endian"}
ET_REL, ET_DYN = 1, 3
_FILE_TYPES = {ET_REL: "a relocatable object", 2: "an executable", ET_DYN: "a shared object", 4: "a core file"}
SHT_PROGBITS, SHT_SYMTAB, SHT_RELA, SHT_DYNAMIC, SHT_NOBITS, SHT_DYNSYM = 1, 2, 4, 6, 8, 11
SHF_ALLOC = 2
_SHN_UNDEF = 0
#: The size in bytes up to which the parts of a file are kept. Keeping larger files would take too much memory.
_SMALL = 1 << 18
_STB_LOCAL, STB_GLOBAL, STB_WEAK = 0, 1, 2

# One format per record of the file; "x" skips the fields that are not read here.
_HEADER = Struct("<4sBB10xHH20xQ10xHHH")
SECTION = Struct("<IIQ8xQQIIQQ")
SYMBOL = Struct("<IBBHQQ")
RELOCATION = Struct("<QIIq")
_DYNAMIC, _DT_NULL = Struct("<qQ"), 0


class Header(NamedTuple):
    """The used fields of an ELF header."""

    magic: bytes
    bits: int
    encoding: int
    type: int
    machine: int
    section_offset: int
    section_size: int
    section_count: int
    names_section: int


class Section(NamedTuple):
    """A section header."""

    name: int
    type: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


#: Faster than `Section._make`, which counts the fields of each record. Unpacked records always have the right number.
_as_section: Callable[[tuple[int, ...]], Section] = partial(tuple.__new__, Section)


class Symbol(NamedTuple):
    """An entry of a symbol table."""

    position: int  # of its record in the file
    name: str
    string: int  # the offset of its name in the string table
    info: int
    other: int
    section: int
    value: int
    size: int

    @property
    def defined(self) -> bool:
        """Whether the file defines the symbol."""
        return self.section != _SHN_UNDEF

    @property
    def binding(self) -> int:
        """One of the ``STB_`` numbers."""
        return self.info >> 4

    @property
    def type(self) -> int:
        """One of the ``STT_`` numbers."""
        return self.info & 0xF


def align_up(position: int, alignment: int) -> int:
    """Return the first multiple of an alignment at or after a position."""
    return -(-position // alignment) * alignment


def is_elf(data: bytes) -> bool:
    """Return whether the bytes start like an ELF file, of any class and byte order."""
    return data[: len(ELF_MAGIC)] == ELF_MAGIC


def _cache_if_small(read: Callable[[bytes], _T]) -> Callable[[bytes], _T]:
    """Return a function that caches the results of `read` for the last small files, because each object is read several times."""
    cached = lru_cache(maxsize=8)(read)
    return wraps(read)(lambda data: cached(data) if len(data) < _SMALL else read(data))


@_cache_if_small
def read_header(data: bytes) -> Header:
    """Return the ELF header of a file. Raise `FormatError` if it is not an ELF file, truncated, or not 64-bit and little-endian."""
    if not is_elf(data):
        raise FormatError(f"the file is not an ELF file, because it starts with {data[: len(ELF_MAGIC)]!r}")
    header = Header._make(_HEADER.unpack(read_bytes(data, 0, _HEADER.size, "the ELF header")))
    bits = _CLASSES.get(header.bits, f"class {header.bits}")
    encoding = _ENCODINGS.get(header.encoding, f"encoding {header.encoding}")
    if (bits, encoding) != ("64-bit", "little-endian"):
        raise FormatError(f"the ELF file is {bits} and {encoding}, but only 64-bit little-endian files are supported")
    return header


def read_sections(data: bytes, file_type: int) -> tuple[Section, ...]:
    """Return all section headers of a file. The result is empty if the file has no section header table.

    Raise `FormatError` if the file is malformed, or its type is not `file_type` (one of the ``ET_`` numbers).
    """
    actual_type = read_header(data).type
    if actual_type != file_type:
        named_type = _FILE_TYPES.get(actual_type, f"a file of type {actual_type}")
        raise FormatError(f"the ELF file is {named_type}, not {_FILE_TYPES[file_type]}")
    return _read_sections(data)


@_cache_if_small
def _read_sections(data: bytes) -> tuple[Section, ...]:
    """Return the sections of an ELF file, none if it has no section headers. Raise `FormatError` if the file is malformed."""
    header = read_header(data)
    if header.section_offset == 0:
        return ()
    if header.section_size != SECTION.size:
        raise FormatError(f"the section headers of the ELF file have {header.section_size} bytes each, not {SECTION.size}")
    count = header.section_count
    if not count:  # it does not fit into the ELF header, so the first section header states it
        first_record = read_bytes(data, header.section_offset, SECTION.size, "a section header")
        count = Section._make(SECTION.unpack(first_record)).size
    records = read_bytes(data, header.section_offset, count * SECTION.size, "the section headers")
    return tuple(map(_as_section, SECTION.iter_unpack(records)))


def find_section(sections: tuple[Section, ...], section_type: int) -> Section | None:
    """Return the first section of a type, or None."""
    return next((section for section in sections if section.type == section_type), None)


def object_symbols(data: bytes) -> list[Symbol]:
    """Return the non-local symbols of a relocatable object, which may be none. Raise `FormatError` for a malformed file."""
    return [symbol for symbol in all_object_symbols(data) if symbol.info >> 4 != _STB_LOCAL]


@_cache_if_small
def all_object_symbols(data: bytes) -> tuple[Symbol, ...]:
    """Return the symbols of a relocatable object, the null symbol first; () without a symbol table. Raise `FormatError` if malformed."""
    sections = read_sections(data, ET_REL)
    table = find_section(sections, SHT_SYMTAB)
    return () if table is None else tuple(read_symbols(data, sections, table, local=True))


def names_and_sections(data: bytes, sections: tuple[Section, ...], *, every: bool = False) -> Iterator[tuple[str, Section]]:
    """Yield (name, section) for the sections of a file, or nothing if its sections have no names. Raise `FormatError` for a malformed file.

    Sections without content in the file are yielded only with `every`.
    """
    header = read_header(data)
    if header.names_section >= len(sections):
        return
    table = sections[header.names_section]
    strings = read_bytes(data, table.offset, table.size, "a string table")
    for section in sections:
        if every or section.type != SHT_NOBITS:
            yield read_string(strings, section.name), section


def read_symbols(data: bytes, sections: tuple[Section, ...], table: Section, *, local: bool = False) -> Iterator[Symbol]:
    """Return the non-local symbols of a table, or with `local`, all, even the null symbol. Raise `FormatError` for a malformed file."""
    strings = read_linked_strings(data, sections, table)
    rows = list(SYMBOL.iter_unpack(read_table(data, table, SYMBOL)))
    positions = range(table.offset, table.offset + table.size, SYMBOL.size)
    symbols = map(Symbol, positions, [read_string(strings, row[0]) for row in rows], *zip(*rows, strict=True))
    return symbols if local else (symbol for symbol in symbols if symbol.info >> 4 != _STB_LOCAL)


def read_table(data: bytes, table: Section, record: Struct) -> bytes:
    """Return the content of a section that is an array of `record`.

    Raise `FormatError` if the entries do not have the size of `record`, the last entry is incomplete, or the file is truncated.
    """
    if table.entry_size != record.size:
        raise FormatError(f"a table in the ELF file has entries of {table.entry_size} bytes, not of {record.size} bytes")
    if table.size % record.size:
        raise FormatError(f"a table in the ELF file has {table.size} bytes, which is not a multiple of its entry size, {record.size} bytes")
    return read_bytes(data, table.offset, table.size, "a table of symbols, relocations or dynamic entries")


def read_linked_strings(data: bytes, sections: tuple[Section, ...], table: Section) -> bytes:
    """Return the content of the string table that a section refers to.

    Raise `FormatError` if the string table does not exist, or the file is truncated.
    """
    if table.link >= len(sections):
        raise FormatError(f"the ELF file refers to section {table.link}, but the number of its sections is {len(sections)}")
    strings = sections[table.link]
    return read_bytes(data, strings.offset, strings.size, "a string table")


def read_string(strings: bytes, offset: int) -> str:
    """Return the string that begins at an offset of a string table.

    Raise `FormatError` if the table does not contain the offset, or no NUL ends the string.
    """
    # `find` also returns -1 for an offset behind the end.
    end = strings.find(b"\0", offset)
    if end < 0:
        raise FormatError(f"a string table of {len(strings)} bytes in the ELF file has no terminated string at offset {offset}")
    return strings[offset:end].decode("utf-8", "surrogateescape")


class StringTable:
    """A string table that is being written."""

    def __init__(self) -> None:
        self.content = bytearray(1)
        self._offsets: dict[str, int] = {"": 0}

    def add(self, text: str) -> int:
        """Add a string unless the table contains it, and return its offset."""
        offset = self._offsets.get(text)
        if offset is None:
            offset = self._offsets[text] = len(self.content)
            self.content += text.encode("utf-8", "surrogateescape") + b"\0"
        return offset


def dynamic_entries(data: bytes, table: Section) -> Iterator[tuple[int, int]]:
    """Yield the (tag, value) entries of a dynamic section before the entry that ends it. See `read_table` for the exceptions."""
    return takewhile(lambda entry: entry[0] != _DT_NULL, _DYNAMIC.iter_unpack(read_table(data, table, _DYNAMIC)))


def read_bytes(data: bytes, offset: int, size: int, part: str) -> bytes:
    """Return `size` bytes of the file at `offset`. Raise `FormatError`, with `part` as the name of the range, if the file ends earlier."""
    if offset + size > len(data):
        raise FormatError(f"the ELF file is truncated: it has {len(data)} bytes, but {part} should end at byte {offset + size}")
    return data[offset : offset + size]
