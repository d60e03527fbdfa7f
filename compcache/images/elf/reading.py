"""Reads symbols, code, data and dependencies from ELF files in memory. Every function raises `FormatError` if the bytes are malformed."""

from __future__ import annotations

from bisect import bisect_right
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from compcache.arch.known import architecture_of_elf
from compcache.errors import FormatError
from compcache.images.elf import parts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from compcache.arch.architecture import Architecture
    from compcache.images.elf.parts import Symbol

__all__ = [
    "CodeSection", "Datum", "architecture_of", "code_sections", "data_of", "dynamic_defined", "dynamic_required", "dynamic_undefined",
    "has_fixed_code", "named_sections", "needed_libraries", "needed_versions", "sections_with_prefix", "undefined_symbols", "users_of",
]  # fmt: skip

_SHT_GNU_VERNEED = 0x6FFFFFFE
_SHF_WRITE, _SHF_EXECINSTR = 1, 4
_STT_FUNC = 2
_DT_NEEDED = 1
_VERNEED = Struct("<2xHIII")
_VERNAUX = Struct("<4x4xII")


class CodeSection(NamedTuple):
    """A section of machine code in a relocatable object, before relocation.

    Attributes:
        code: the machine code.
        functions: the functions, as sorted (offset, end, name).
        tables: the tables of its relocations, as bytes.
        changed_range: returns the range that linking may change, given the offset and the type of a relocation.
    """

    code: bytes
    functions: tuple[tuple[int, int, str], ...]
    tables: tuple[bytes, ...]
    changed_range: Callable[..., tuple[int, int]]

    def changed_ranges(self) -> list[tuple[int, int]]:
        """Return the ranges that linking may change, as sorted (offset, end)."""
        return sorted([self.changed_range(at, kind) for table in self.tables for at, kind, *_ in parts.RELOCATION.iter_unpack(table)])


class Datum(NamedTuple):
    """The initial value of a variable in a relocatable object, and how its section is mapped."""

    content: bytes
    alignment: int
    writable: bool


def architecture_of(data: bytes) -> Architecture:
    """Return the architecture of an ELF file. Raise `FormatError` for a malformed file."""
    return architecture_of_elf(parts.read_header(data).machine)


def has_fixed_code(data: bytes) -> bool:
    """Return whether linking keeps the instructions of an object in place. This depends on the architecture.

    Raise `FormatError` for a malformed file.
    """
    return architecture_of(data).relocations.changed is not None


def undefined_symbols(data: bytes) -> tuple[str, ...]:
    """Return the names of the undefined symbols of a relocatable object, in the order of its symbol table.

    Strong and weak references are included. The names that code generation adds are included too, such as `__tls_get_addr` or
    `_GLOBAL_OFFSET_TABLE_`. An object without a symbol table has no undefined symbols. Raise `FormatError` for a malformed file.
    """
    return tuple([symbol.name for symbol in parts.object_symbols(data) if not symbol.defined])


def users_of(data: bytes, names: Collection[str]) -> set[tuple[str, str]]:
    """Return the references of a relocatable object to the symbols `names`, as (symbol that contains the reference, name).

    The first symbol is empty if no symbol contains the reference. Raise `FormatError` for a malformed file.
    """
    sections, symbols = parts.read_sections(data, parts.ET_REL), parts.all_object_symbols(data)
    wanted = {number: symbol.name for number, symbol in enumerate(symbols) if symbol.name in names}
    by_section: dict[int, dict[int, list[Symbol]]] = {}  # by section and start
    for symbol in symbols:
        if symbol.name and symbol.size:
            by_section.setdefault(symbol.section, {}).setdefault(symbol.value, []).append(symbol)
    found = set()
    for table in sections:
        if table.type != parts.SHT_RELA or not sections[table.info].flags & parts.SHF_ALLOC:
            continue
        by_start = by_section.get(table.info, {})
        starts = [-1, *sorted(by_start)]
        for offset, _, number, _ in parts.RELOCATION.iter_unpack(parts.read_table(data, table, parts.RELOCATION)):
            if number in wanted:
                nearest = by_start.get(starts[bisect_right(starts, offset) - 1], ())
                users = [symbol.name for symbol in nearest if offset < symbol.value + symbol.size]
                found.update([(user, wanted[number]) for user in users or [""]])
    return found


def dynamic_undefined(data: bytes) -> tuple[str, ...]:
    """Return the names of the undefined symbols of a shared object, in the order of its dynamic symbol table.

    Strong and weak references are included. Raise `FormatError` for a malformed file.
    """
    return tuple([symbol.name for symbol in _dynamic_symbols(data) if not symbol.defined])


def dynamic_required(data: bytes) -> tuple[str, ...]:
    """Return the names of the undefined strong symbols of a shared object. Raise `FormatError` for a malformed file."""
    return tuple([symbol.name for symbol in _dynamic_symbols(data) if not symbol.defined and symbol.binding != parts.STB_WEAK])


def dynamic_defined(data: bytes) -> tuple[str, ...]:
    """Return the names that a shared object exports, in the order of its dynamic symbol table. Raise `FormatError` for a malformed file."""
    return tuple([symbol.name for symbol in _dynamic_symbols(data) if symbol.defined])


def _dynamic_symbols(data: bytes) -> Iterator[Symbol]:
    """Yield the dynamic symbols of a shared object. Raise `FormatError` if it has no section header for them."""
    sections = parts.read_sections(data, parts.ET_DYN)
    table = parts.find_section(sections, parts.SHT_DYNSYM)
    if table is None:
        raise FormatError("the shared object has no section header for a dynamic symbol table")
    return parts.read_symbols(data, sections, table)


def needed_libraries(data: bytes) -> tuple[str, ...]:
    """Return the names of libraries that a shared object needs (`DT_NEEDED`), in file order. Raise `FormatError` for a malformed file."""
    sections = parts.read_sections(data, parts.ET_DYN)
    table = parts.find_section(sections, parts.SHT_DYNAMIC)
    if table is None:
        raise FormatError("the shared object has no section header for a dynamic section")
    strings = parts.read_linked_strings(data, sections, table)
    return tuple([parts.read_string(strings, value) for tag, value in parts.dynamic_entries(data, table) if tag == _DT_NEEDED])


def needed_versions(data: bytes) -> dict[str, tuple[str, ...]]:
    """Return the symbol versions that a shared object needs, by library (``.gnu.version_r``). Raise `FormatError` for a malformed file.

    Layout: Linux Standard Base Core Specification 5.0, "Symbol Versioning", `Elf64_Verneed` and `Elf64_Vernaux`.
    """
    sections = parts.read_sections(data, parts.ET_DYN)
    table = parts.find_section(sections, _SHT_GNU_VERNEED)
    if table is None:
        return {}
    content = parts.read_bytes(data, table.offset, table.size, "the needed versions")
    strings = parts.read_linked_strings(data, sections, table)
    versions: dict[str, tuple[str, ...]] = {}
    for position, (names_count, library, names_distance) in _read_chain(content, _VERNEED, 0, table.info):
        names = [parts.read_string(strings, name) for _, (name,) in _read_chain(content, _VERNAUX, position + names_distance, names_count)]
        versions[parts.read_string(strings, library)] = tuple(names)
    return versions


def _read_chain(content: bytes, record: Struct, position: int, count: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield (offset, fields) of each of `count` linked records, without the last field, the distance to the next record.

    Raise `FormatError` if a record ends after `content`.
    """
    for _ in range(count):
        if position + record.size > len(content):
            raise FormatError("the shared object's table of needed versions refers to bytes after its end")
        *fields, distance = record.unpack_from(content, position)
        yield position, tuple(fields)
        position += distance


def named_sections(data: bytes, names: Collection[str]) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of each section of a relocatable object whose name is in `names`. Raise `FormatError` for a malformed file."""
    for name, section in parts.names_and_sections(data, parts.read_sections(data, parts.ET_REL)):
        if name in names:
            yield name, parts.read_bytes(data, section.offset, section.size, f"the section {name}")


def sections_with_prefix(data: bytes, prefix: str) -> dict[str, bytes]:
    """Return the content of the sections whose names have this prefix, by name. The file may be of any type.

    Raise `FormatError` for a malformed file.
    """
    sections = parts.read_sections(data, parts.read_header(data).type)
    return {
        name: parts.read_bytes(data, section.offset, section.size, f"the section {name}")
        for name, section in parts.names_and_sections(data, sections)
        if name.startswith(prefix)
    }


def data_of(data: bytes, names: Collection[str], section_names: Collection[str]) -> dict[str, Datum]:
    """Return the initial values of variables of a relocatable object, by name. Raise `FormatError` for a malformed file.

    Only variables in sections with the names `section_names` are returned. Variables in sections that linking changes are left out, and so
    are variables without content in the file (.bss).
    """
    sections = parts.read_sections(data, parts.ET_REL)
    usable = {
        number
        for number, (name, section) in enumerate(parts.names_and_sections(data, sections, every=True))
        if section.type == parts.SHT_PROGBITS and name in section_names
    }
    usable -= {table.info for table in sections if table.type == parts.SHT_RELA}
    values = {}
    for symbol in parts.object_symbols(data):
        if symbol.name in names and symbol.section in usable:
            section = sections[symbol.section]
            content = parts.read_bytes(data, section.offset + symbol.value, symbol.size, f"the variable {symbol.name}")
            alignment = section.alignment if not symbol.value else min(section.alignment, symbol.value & -symbol.value)
            values[symbol.name] = Datum(content, max(alignment, 1), bool(section.flags & _SHF_WRITE))
    return values


def code_sections(data: bytes) -> tuple[CodeSection, ...]:
    """Return the sections of a relocatable object that contain machine code.

    Raise `FormatError` if the object is malformed, or linking may move its code (`has_fixed_code`).
    """
    architecture = architecture_of(data)
    changed = architecture.relocations.changed
    if changed is None:
        raise FormatError(f"the object's code cannot be compared, because linking moves code on the architecture {architecture.name}")
    sections = parts.read_sections(data, parts.ET_REL)
    symbols = parts.all_object_symbols(data)
    code_parts = []
    for number, section in enumerate(sections):
        if section.type != parts.SHT_PROGBITS or not section.flags & _SHF_EXECINSTR or not section.size:
            continue
        code = parts.read_bytes(data, section.offset, section.size, "a section of code")
        tables = [
            parts.read_table(data, table, parts.RELOCATION) for table in sections if table.type == parts.SHT_RELA and table.info == number
        ]
        functions = [
            (value, value + size, name) for _, name, _, info, _, home, value, size in symbols if home == number and info & 0xF == _STT_FUNC
        ]
        code_parts.append(CodeSection(code, tuple(sorted(functions)), tuple(tables), changed))
    return tuple(code_parts)
