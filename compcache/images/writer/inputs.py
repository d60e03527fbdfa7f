"""Reads the objects for a shared object, and refuses objects with parts that the writer does not know.

This file lists the known types and flags of sections, the names of sections that linkers treat specially, and the known types and bindings
of symbols. Everything else raises `FormatError`, and a linker makes the image. Layout: System V gABI, chapter 4, and the ABIs of the
processors.
"""

from __future__ import annotations

import functools
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from compcache.arch.known import architecture_of_elf
from compcache.errors import FormatError
from compcache.images.elf import parts
from compcache.images.elf.objects import STT_OBJECT, STV_HIDDEN, STV_PROTECTED, TABLE_SECTION
from compcache.images.writer.frames import read_frames

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compcache.arch.architecture import Linking
    from compcache.images.elf.objects import DistanceTable
    from compcache.images.elf.parts import Section
    from compcache.images.writer.frames import Frame

__all__ = ["COMMON", "STT_TLS", "Input", "InputSection", "read_input", "with_table"]

SHT_INIT_ARRAY, SHT_FINI_ARRAY = 14, 15
_SHT_NULL, _SHT_STRTAB, _SHT_GROUP, _SHT_LLVM_ADDRSIG = 0, 3, 17, 0x6FFF4C03
SHF_WRITE, SHF_EXECINSTR, SHF_MERGE, SHF_STRINGS, SHF_TLS = 1, 4, 0x10, 0x20, 0x400
_SHF_INFO_LINK, _SHF_GROUP, _SHF_RETAIN, _SHF_EXCLUDE = 0x40, 0x200, 0x200000, 0x80000000
_SHN_UNDEF, SHN_ABS, COMMON = 0, 0xFFF1, 0xFFF2
_STB_WEAK = 2
STT_NOTYPE, STT_FUNC, STT_SECTION, STT_FILE, STT_TLS = 0, 2, 3, 4, 6
_FLAGS_OF_FILE = Struct("<48xI")
#: The offset of the system (EI_OSABI) in the header, and the known systems: System V and GNU. GNU's extensions are refused one by one.
_OSABI_AT, _SYSTEMS = 7, (0, 3)

_KNOWN_FLAGS = SHF_WRITE | parts.SHF_ALLOC | SHF_EXECINSTR | SHF_MERGE | SHF_STRINGS | SHF_TLS | _SHF_INFO_LINK | _SHF_GROUP | _SHF_RETAIN
#: The mapped sections of an image. A section of an object whose name has one of these names before a dot becomes a part of that section.
_MAPPED_SECTIONS = (
    ".text", ".rodata", ".data.rel.ro", ".data", ".bss", ".tdata", ".tbss", ".init_array", ".fini_array", ".gcc_except_table", ".eh_frame",
)  # fmt: skip
_UNMAPPED_PREFIXES = (".debug_", ".comment")
#: Sections that linkers read and leave out.
_OMITTED_SECTIONS = (".note.GNU-stack", ".llvm_addrsig")
_PROPERTIES = ".note.gnu.property"
MAX_ALIGNMENT = 0x1000
#: The number of the section of an added constant, the module's table. No section of an object has this number.
_ADDED = -1
_SMALL = 1 << 14  # bytes: the parts of smaller objects are kept


class InputSection(NamedTuple):
    """A section of an object that becomes part of the image."""

    number: int
    name: str
    output: str
    type: int
    flags: int
    content: memoryview  # empty if the section has no content in the file
    size: int
    alignment: int
    entry_size: int
    relocations: tuple[tuple[int, int, int, int], ...]  # offset, type, symbol, addend
    frames: tuple[Frame, ...] = ()


class Input(NamedTuple):
    """A relocatable object."""

    machine: int
    linking: Linking
    sections: tuple[InputSection, ...]
    symbols: tuple[parts.Symbol, ...]
    strings: bytes
    has_properties: bool


def read_input(data: bytes) -> Input:
    """Read an object. The results for small objects are cached.

    Raises:
        FormatError: the object is malformed, or has parts that the writer does not support.
        ValueError, IndexError, struct.error: the object has unwinding tables that are malformed.
    """
    return (_read_small if len(data) < _SMALL else _read_object)(data)


def _read_object(data: bytes) -> Input:
    """Return an object as an input of the writer. See `read_input` for the exceptions."""
    header = parts.read_header(data)
    linking = architecture_of_elf(header.machine).linking
    if linking is None:
        raise FormatError(f"shared objects for the ELF machine {header.machine} cannot be written without a linker")
    if data[_OSABI_AT] not in _SYSTEMS:
        raise FormatError(f"the object is for the system (EI_OSABI) {data[_OSABI_AT]}, which only linkers support")
    if _FLAGS_OF_FILE.unpack_from(data)[0]:
        raise FormatError(f"the object has the processor flags {_FLAGS_OF_FILE.unpack_from(data)[0]:#x}, which only linkers support")
    sections = parts.read_sections(data, parts.ET_REL)
    if header.names_section >= len(sections):
        raise FormatError(f"the object has no section with the names of its {len(sections)} sections")
    section_names = parts.read_linked_strings(data, sections, sections[0]._replace(link=header.names_section))
    names = [parts.read_string(section_names, section.name) for section in sections]
    relocations = _read_relocations(data, sections)
    usable = [
        _read_section(data, number, names[number], candidate, relocations.get(number, ()), linking)
        for number, candidate in enumerate(sections)
        if _is_part(names[number], candidate)
    ]
    symbols, symbol_names = _read_symbols(data, sections)
    return Input(header.machine, linking, tuple(usable), symbols, symbol_names, _PROPERTIES in names)


def with_table(obj: Input, table: DistanceTable) -> Input:
    """Return an object with an added constant, without the file that linkers get (`elf.objects.table_object`)."""
    numbers = {symbol.name: number for number, symbol in enumerate(obj.symbols) if symbol.info >> 4}
    symbols, strings = [*obj.symbols], bytearray(obj.strings)

    def add_symbol(name: str, kind: int, visibility: int, section: int, size: int) -> None:
        """Append a global symbol, and record its number."""
        numbers[name] = len(symbols)
        symbols.append(parts.Symbol(0, name, len(strings), parts.STB_GLOBAL << 4 | kind, visibility, section, 0, size))
        strings.extend(name.encode("utf-8", "surrogateescape") + b"\0")

    for name in table.names:
        if name not in numbers:
            add_symbol(name, STT_NOTYPE, STV_HIDDEN, _SHN_UNDEF, 0)
    size = table.size()
    section = InputSection(
        _ADDED, TABLE_SECTION, ".rodata", parts.SHT_PROGBITS, parts.SHF_ALLOC, memoryview(table.head.ljust(size, b"\0")), size, 16, 0,
        tuple(table.relocations(numbers)),
    )  # fmt: skip
    add_symbol(table.symbol, STT_OBJECT, STV_PROTECTED, _ADDED, size)
    return obj._replace(sections=(*obj.sections, section), symbols=tuple(symbols), strings=bytes(strings))


#: Keeps the parts of small objects, because many images share the objects of entry points.
_read_small = functools.lru_cache(maxsize=512)(_read_object)


def _is_part(name: str, section: Section) -> bool:
    """Return whether a section becomes part of the image. Raise `FormatError` if the section has unknown flags."""
    kind, flags = section.type, section.flags
    if kind in (_SHT_NULL, parts.SHT_SYMTAB, _SHT_STRTAB, parts.SHT_RELA, _SHT_GROUP, _SHT_LLVM_ADDRSIG):
        return False
    if (name in _OMITTED_SECTIONS and not flags) or name == _PROPERTIES:
        return False
    if flags & ~_KNOWN_FLAGS:
        if flags & ~_KNOWN_FLAGS == _SHF_EXCLUDE and not flags & parts.SHF_ALLOC:
            return False
        raise FormatError(f"the section {name} has the flags {flags:#x}, which only linkers support")
    return True


def _read_section(
    data: bytes, number: int, name: str, section: Section, relocations: tuple[tuple[int, int, int, int], ...], linking: Linking
) -> InputSection:
    """Return a section for the output section of its name.

    Raises:
        FormatError: the section is malformed or needs a linker.
        ValueError, IndexError, struct.error: the section has unwinding tables that are malformed.
    """
    kind, flags, alignment = section.type, section.flags, max(section.alignment, 1)
    output = _output_name(name, mapped=bool(flags & parts.SHF_ALLOC))
    is_frames = output == ".eh_frame"
    if is_frames and kind == linking.unwind_type:
        kind = parts.SHT_PROGBITS
    expected = {".init_array": SHT_INIT_ARRAY, ".fini_array": SHT_FINI_ARRAY}.get(output, kind)
    if kind not in (parts.SHT_PROGBITS, parts.SHT_NOBITS, SHT_INIT_ARRAY, SHT_FINI_ARRAY):
        raise FormatError(f"the section {name} has the type {kind:#x}, which only linkers support")
    if kind != expected or (output in (".bss", ".tbss")) != (kind == parts.SHT_NOBITS and flags & parts.SHF_ALLOC != 0):
        raise FormatError(f"the section {name} has the type {kind:#x}, which only linkers support in a section with this name")
    if flags & SHF_WRITE and flags & SHF_EXECINSTR:
        raise FormatError(f"the section {name} is writable and executable, which only linkers support")
    if bool(flags & SHF_TLS) != (output in (".tdata", ".tbss")):
        raise FormatError(f"the section {name} has the flags {flags:#x}, which only linkers support in a section with this name")
    if alignment & (alignment - 1) or alignment > MAX_ALIGNMENT:
        raise FormatError(f"the section {name} has the alignment {alignment:#x}, which is not a power of two up to {MAX_ALIGNMENT:#x}")
    content = memoryview(data)[section.offset : section.offset + section.size] if kind != parts.SHT_NOBITS else memoryview(b"")
    if kind == parts.SHT_NOBITS and relocations:
        raise FormatError(f"the section {name} has relocations but no content")
    if kind != parts.SHT_NOBITS and len(content) < section.size:
        raise FormatError(f"the object is truncated: its section {name} should end at byte {section.offset + section.size}")
    frames = read_frames(bytes(content), {offset for offset, *_ in relocations}) if is_frames else ()
    return InputSection(number, name, output, kind, flags, content, section.size, alignment, section.entry_size, relocations, frames)


def _output_name(name: str, *, mapped: bool) -> str:
    """Return the name of the output section for a section. Raise `FormatError` if only a linker can place the section.

    `mapped` is whether a load maps the section.
    """
    if not mapped:
        if name.startswith(_UNMAPPED_PREFIXES):
            return name
        raise FormatError(f"the section {name}, which is not mapped, has a name that only linkers support")
    output = next((title for title in _MAPPED_SECTIONS if name == title or name.startswith(f"{title}.")), None)
    if output is None and (not name or name.startswith(".")):
        raise FormatError(f"the mapped section {name!r} has a name that only linkers support")
    return output or name


def _read_relocations(data: bytes, sections: Sequence[Section]) -> dict[int, tuple[tuple[int, int, int, int], ...]]:
    """Return the relocations of each section, by the section's number. Raise `FormatError` for a second table or dynamic relocations."""
    relocations: dict[int, tuple[tuple[int, int, int, int], ...]] = {}
    for section in sections:
        if section.type == parts.SHT_RELA:
            if section.info in relocations:
                raise FormatError(f"section {section.info} of the object has two tables of relocations")
            if section.flags & parts.SHF_ALLOC:
                raise FormatError(
                    f"section {section.info} of the object has relocations for the dynamic linker, which only linkers support"
                )
            relocations[section.info] = tuple(parts.RELOCATION.iter_unpack(parts.read_table(data, section, parts.RELOCATION)))
    return relocations


def _read_symbols(data: bytes, sections: tuple[Section, ...]) -> tuple[tuple[parts.Symbol, ...], bytes]:
    """Return the symbols of an object and their string table. Raise `FormatError` for an invalid symbol, no table or several tables."""
    tables = [section for section in sections if section.type == parts.SHT_SYMTAB]
    if len(tables) != 1:
        raise FormatError(f"the object must have one symbol table, not {len(tables)}")
    symbols = parts.all_object_symbols(data)
    kinds = {symbol[3:6]: symbol for symbol in symbols}  # by info, visibility and section; names matter for undefined symbols alone
    for symbol in (*kinds.values(), *[symbol for symbol in symbols if not symbol.section]):
        _check_symbol(symbol, len(sections))
    return symbols, parts.read_linked_strings(data, sections, tables[0])


_TYPES = frozenset((STT_NOTYPE, STT_OBJECT, STT_FUNC, STT_SECTION, STT_FILE, STT_TLS))
_VISIBILITIES = frozenset((0, 2, 3))


def _check_symbol(symbol: parts.Symbol, count: int) -> None:
    """Raise `FormatError` if a symbol is of a kind that needs a linker, or is in a section that does not exist."""
    _, name, _, info, other, section, _, _ = symbol
    if info >> 4 > _STB_WEAK:
        raise FormatError(f"the symbol {name!r} has the binding {info >> 4}, which only linkers support")
    if info & 0xF not in _TYPES:
        raise FormatError(f"the symbol {name!r} has the type {info & 0xF}, which only linkers support")
    if other not in _VISIBILITIES:
        raise FormatError(f"the symbol {name!r} has the visibility {other}, which only linkers support")
    if section >= count and section not in (SHN_ABS, COMMON):
        raise FormatError(f"the symbol {name!r} is in section {section:#x}, but the object has {count} sections")
