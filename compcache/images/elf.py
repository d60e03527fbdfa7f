"""Reading and patching ELF files that are held as bytes: 64-bit, little-endian, nothing else.

It covers what the making of an image needs: which symbols an object leaves undefined, making those
references weak, hiding definitions, and what a linked image still asks of its process. No I/O.

Layout: System V gABI, https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html
(ELF header, sections and symbol tables in chapter 4, the dynamic section in chapter 5).

Everything is found through the section headers, so an image that was stripped of them is refused. Bytes that
are not of the format, or end too early, raise `FormatError`, and no other exception.
"""

from __future__ import annotations

from itertools import chain, count
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from compcache.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

__all__ = [
    "EM_AARCH64",
    "EM_LOONGARCH",
    "EM_PPC64",
    "EM_RISCV",
    "EM_X86_64",
    "CodeSection",
    "Datum",
    "code_sections",
    "data_of",
    "dynamic_defined",
    "dynamic_required",
    "dynamic_undefined",
    "has_fixed_code",
    "hide_symbols",
    "is_elf",
    "machine",
    "named_sections",
    "needed_libraries",
    "needed_versions",
    "protect_dynamic",
    "rename_undefined",
    "rename_versioned",
    "sections_like",
    "set_aside",
    "take_places",
    "undefined_symbols",
    "weaken_undefined",
    "with_sections",
]

EM_PPC64 = 21
EM_X86_64 = 62
EM_AARCH64 = 183
EM_RISCV = 243
EM_LOONGARCH = 258

_MAGIC = b"\x7fELF"
_CLASSES = {1: "32-bit", 2: "64-bit"}
_ENCODINGS = {1: "little-endian", 2: "big-endian"}
_ET_REL, _ET_DYN = 1, 3
_FILE_TYPES = {
    _ET_REL: "a relocatable object",
    2: "an executable",
    _ET_DYN: "a shared object",
    4: "a core file",
}
_SHT_GNU_VERNEED = 0x6FFFFFFE
_SHT_PROGBITS, _SHT_SYMTAB, _SHT_RELA, _SHT_DYNAMIC, _SHT_NOBITS, _SHT_DYNSYM = 1, 2, 4, 6, 8, 11
_SHF_WRITE, _SHF_ALLOC, _SHF_EXECINSTR = 1, 2, 4
_SHN_UNDEF = 0
_STB_LOCAL, _STB_GLOBAL, _STB_WEAK = 0, 1, 2
_STT_FUNC, _STT_TLS = 2, 6
_STV_DEFAULT, _STV_HIDDEN, _STV_PROTECTED = 0, 2, 3
_DT_NULL, _DT_NEEDED = 0, 1

# One format per record of the file; "x" skips the fields that are not read here.
_HEADER = Struct("<4sBB10xHH20xQ10xHHH")
_SECTION = Struct("<IIQ8xQQIIQQ")
_SYMBOL = Struct("<IBBHQQ")
_RELOCATION = Struct("<QI4x8x")
_DYNAMIC_RELOCATION = Struct("<QIIq")
_PLACE = Struct("<qq")
_DYNAMIC = Struct("<qQ")
_PROGRAM_HEADERS = Struct("<32xQ14xHH")
_SEGMENT = Struct("<II")  # type and flags
_PT_DYNAMIC, _PF_W = 2, 2
_PROGRAM_HEADER_SIZE = 56
_VERNEED = Struct("<2xHIII")
_VERNAUX = Struct("<4x4xII")

# https://gitlab.com/x86-psABIs/x86-64-ABI (relocation types, and which may be relaxed)
_R_X86_64_OF_8_BYTES = frozenset((1, 16, 17, 18, 24, 25, 27, 28, 29, 30, 31, 33))
_R_X86_64_THROUGH_GOT = frozenset((9, *range(41, 49)))
_OPCODE = 4  # bytes of the instruction before the operand, at most
# https://github.com/ARM-software/abi-aa/blob/main/aaelf64/aaelf64.rst
_R_AARCH64_ABS64 = 257
#: By architecture the dynamic relocations that store the address of a symbol: plus the addend, and in the global offset table.
_WITH_ADDEND = {EM_X86_64: (1,), EM_AARCH64: (257,), EM_RISCV: (2,), EM_LOONGARCH: (2,), EM_PPC64: (38,)}
_IN_TABLE = {EM_X86_64: (6, 7), EM_AARCH64: (1025, 1026), EM_RISCV: (5,), EM_LOONGARCH: (5,), EM_PPC64: (20, 21)}

_ARCHITECTURES_OF_FIXED_CODE = frozenset((EM_X86_64, EM_AARCH64))

_INFO_AT, _OTHER_AT = 4, 5  # where st_info and st_other lie in a symbol
_PLACE_AT = 24  # where sh_offset and sh_size lie in a section header
_SYMBOL_NAME = Struct("<I")
_SYMBOL_FIELDS = Struct("<BBHQQ")  # of a symbol, behind its name
_SECTION_PLACE = Struct("<QQ")


class _Header(NamedTuple):
    magic: bytes
    bits: int
    encoding: int
    type: int
    machine: int
    section_offset: int
    section_size: int
    section_count: int
    names_section: int


class _Section(NamedTuple):
    name: int
    type: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


class _Symbol(NamedTuple):
    position: int  # of its record in the file
    name: str
    info: int
    other: int
    section: int
    value: int
    size: int

    @property
    def defined(self) -> bool:
        return self.section != _SHN_UNDEF

    @property
    def binding(self) -> int:
        return self.info >> 4

    @property
    def type(self) -> int:
        return self.info & 0xF


class CodeSection(NamedTuple):
    """Machine code of a relocatable object, before linking has filled anything in.

    `places` are what linking may change, as (offset, end) in order; `functions` are (offset, end, name).
    """

    code: bytes
    places: tuple[tuple[int, int], ...]
    functions: tuple[tuple[int, int, str], ...]


class Datum(NamedTuple):
    """The initial value of a variable in a relocatable object, and how its section is mapped."""

    content: bytes
    alignment: int
    writable: bool


def is_elf(data: bytes) -> bool:
    """Whether the bytes start as an ELF file does, of whatever class and byte order."""
    return data[: len(_MAGIC)] == _MAGIC


def machine(data: bytes) -> int:
    """The architecture that the file is for, one of the `EM_` numbers; `FormatError` where it is not an ELF file."""
    return _read_header(data).machine


def has_fixed_code(data: bytes) -> bool:
    """Whether linking an object leaves its instructions where they are; `FormatError` where it is not an ELF file."""
    return machine(data) in _ARCHITECTURES_OF_FIXED_CODE


def undefined_symbols(data: bytes) -> tuple[str, ...]:
    """The names that a relocatable object uses and does not define, in the order of its symbol table.

    Both strong and weak references count, and so do the names that code generation adds by itself, such as
    `__tls_get_addr` or `_GLOBAL_OFFSET_TABLE_`. An object without a symbol table has none. Raises `FormatError`.
    """
    return tuple(symbol.name for symbol in _object_symbols(data) if not symbol.defined)


def weaken_undefined(data: bytes, keep: Collection[str] = ()) -> bytes:
    """The same object with its undefined symbols made weak, except those in `keep`.

    `dlopen(RTLD_NOW)` refuses an image when one strong symbol is missing from the process; a weak one is then
    null, and only the code that uses it is affected. Thread-local symbols keep their binding: null means
    nothing for them. Linkers record a library as needed, and the version of its symbol, only for the sake of a
    strong reference; without a version, glibc binds to the oldest one (`pow`, `memcpy`). So `keep` should name
    what a library provides. Raises `FormatError`.
    """
    kept = frozenset(keep)
    edits = []
    for symbol in _object_symbols(data):
        strong = symbol.binding == _STB_GLOBAL and symbol.type != _STT_TLS
        if strong and not symbol.defined and symbol.name not in kept:
            edits.append((symbol.position + _INFO_AT, bytes([_STB_WEAK << 4 | symbol.type])))
    return _patched(data, edits)


def hide_symbols(data: bytes, keep: Collection[str] = ()) -> bytes:
    """The same object with the symbols that it defines made hidden, except those in `keep`.

    Objects that are linked together still see each other's hidden symbols; the dynamic symbol table of the
    image does not have them. Unlike in a version script, any name will do. Raises `FormatError`.
    """
    kept = frozenset(keep)
    edits = []
    for symbol in _object_symbols(data):
        visible = symbol.other & 3 in (_STV_DEFAULT, _STV_PROTECTED)
        if visible and symbol.defined and symbol.name not in kept:
            edits.append((symbol.position + _OTHER_AT, bytes([symbol.other & ~3 | _STV_HIDDEN])))
    return _patched(data, edits)


def _patched(data: bytes, edits: Iterable[tuple[int, bytes]]) -> bytes:
    """The same bytes with others from some offsets on, copied once: objects may be large. Edits do not overlap."""
    rest = memoryview(data)
    parts: list[bytes | memoryview] = []
    at = 0
    for offset, new in sorted(edits):
        parts += [rest[at:offset], new]
        at = offset + len(new)
    return b"".join([*parts, rest[at:]]) if parts else data


def rename_versioned(data: bytes) -> bytes:
    """The same object with other names for what it defines under a name with ``@`` (``k@1``, ``vcall@@16``, `.symver`).

    Linkers take what follows for a version, and want a script that defines it. No other symbol gets a name that is in use.
    The new names are in a copy of the string table at the end of the file. Raises `FormatError`.
    """
    symbols = [symbol for symbol in _object_symbols(data) if "@" in symbol.name and symbol.defined]
    taken = {symbol.name for symbol in _object_symbols(data)} if symbols else set()
    return _renamed(data, [(symbol, _free_name(symbol.name.replace("@", "."), taken)) for symbol in symbols])


def rename_undefined(data: bytes, names: Mapping[str, str]) -> bytes:
    """The same object with other names for symbols that it leaves undefined. Raises `FormatError`."""
    symbols = [symbol for symbol in _object_symbols(data) if symbol.name in names and not symbol.defined]
    return _renamed(data, [(symbol, names[symbol.name]) for symbol in symbols])


def _renamed(data: bytes, names: Collection[tuple[_Symbol, str]]) -> bytes:
    """With new names for symbols: they are in a copy of the string table at the end of the file."""
    if not names:
        return data
    sections = _read_sections(data, _ET_REL)
    number = next(number for number, section in enumerate(sections) if section.type == _SHT_SYMTAB)
    table = sections[number].link
    strings = bytearray(_read_linked_strings(data, sections, sections[number]))
    edits = []
    for symbol, name in names:
        edits.append((symbol.position, _SYMBOL_NAME.pack(len(strings))))
        strings += name.encode("utf-8", "surrogateescape") + b"\0"
    start = _read_header(data).section_offset + table * _SECTION.size
    edits.append((start + _PLACE_AT, _SECTION_PLACE.pack(len(data), len(strings))))
    return _patched(data, edits) + bytes(strings)


def set_aside(data: bytes, names: Mapping[str, str]) -> bytes:
    """The same object with definitions under other names, which it refers to and leaves undefined; references to the old names
    stay, and are undefined.

    Raises `FormatError` where a name is not defined, or the other one not referred to.
    """
    symbols = {symbol.name: symbol for symbol in _object_symbols(data)}
    patched = bytearray(data)
    for name, other in names.items():
        old, new = symbols.get(name), symbols.get(other)
        if old is None or new is None or not old.defined or new.defined:
            raise FormatError(f"the object does not define {name!r}, or does not refer to {other!r}")
        fields = _SYMBOL.unpack_from(data, old.position)
        visible = new.other & ~3 | _STV_HIDDEN
        _SYMBOL_FIELDS.pack_into(patched, new.position + _INFO_AT, _STB_GLOBAL << 4 | old.type, visible, *fields[3:])
        _SYMBOL_FIELDS.pack_into(patched, old.position + _INFO_AT, _STB_GLOBAL << 4, _STV_DEFAULT, _SHN_UNDEF, 0, 0)
    return bytes(patched)


def _free_name(name: str, taken: set[str]) -> str:
    """A name like this one that is not taken; it is then."""
    candidates = chain([name], (f"{name}.{number}" for number in count()))
    free = next(candidate for candidate in candidates if candidate not in taken)
    taken.add(free)
    return free


def take_places(data: bytes, names: Collection[str], table: str) -> tuple[bytes, dict[str, bytes]]:
    """The same shared object without the relocations of some undefined symbols, and the places that these would have filled.

    A place is two i64: where the image holds the address of the symbol, as the distance from that of the symbol `table`, and what is
    to be added to the address. Without them the dynamic linker neither looks the symbols up nor stores anything. Raises `FormatError`
    where a relocation stores anything else than an address.
    """
    sections = _read_sections(data, _ET_DYN)
    dynamic = _find_section(sections, _SHT_DYNSYM)
    if dynamic is None:
        raise FormatError("the shared object has no dynamic symbol table, or no section header for it")
    symbols = list(_read_symbols(data, sections, dynamic, local=True))
    start = next((symbol.value for symbol in symbols if symbol.name == table), None)
    if start is None:
        raise FormatError(f"the shared object does not define {table}")
    wanted = {number: symbol.name for number, symbol in enumerate(symbols) if symbol.name in names and not symbol.defined}
    architecture = machine(data)
    with_addend, in_table = _WITH_ADDEND.get(architecture, ()), _IN_TABLE.get(architecture, ())
    patched = bytearray(data)
    found: dict[str, bytes] = {}
    for section in sections:
        if section.type != _SHT_RELA or not section.flags & _SHF_ALLOC:
            continue
        records = _read_table(data, section, _DYNAMIC_RELOCATION)
        for index, (place, kind, number, addend) in enumerate(_DYNAMIC_RELOCATION.iter_unpack(records)):
            name = wanted.get(number)
            if name is None:
                continue
            if kind not in with_addend and kind not in in_table:
                raise FormatError(f"the relocation of {name!r} is of type {kind}, which does not store an address")
            found[name] = found.get(name, b"") + _PLACE.pack(place - start, addend if kind in with_addend else 0)
            _DYNAMIC_RELOCATION.pack_into(patched, section.offset + index * _DYNAMIC_RELOCATION.size, place, 0, 0, 0)
    return bytes(patched), found


def protect_dynamic(data: bytes) -> bytes:
    """The same shared object with a dynamic section that the dynamic linker leaves as it is.

    From version 2.35 on, glibc writes addresses into that section unless the program header forbids it (`l_ld_readonly`): a page of private
    memory for each image, which one without relocations does without. Raises `FormatError`.
    """
    _read_header(data)
    start, size, number = _PROGRAM_HEADERS.unpack_from(data)
    if number and size != _PROGRAM_HEADER_SIZE:
        raise FormatError(f"program headers of {size} bytes, and not {_PROGRAM_HEADER_SIZE}")
    patched = bytearray(data)
    for at in range(start, start + _PROGRAM_HEADER_SIZE * number, _PROGRAM_HEADER_SIZE):
        kind, flags = _SEGMENT.unpack(_read_bytes(data, at, _SEGMENT.size, "program header"))
        if kind == _PT_DYNAMIC:
            _SEGMENT.pack_into(patched, at, kind, flags & ~_PF_W)
    return bytes(patched)


def dynamic_undefined(data: bytes) -> tuple[str, ...]:
    """The names that a shared object expects of its process, in the order of its dynamic symbol table.

    Both strong and weak references count. Raises `FormatError`.
    """
    return tuple([symbol.name for symbol in _dynamic_symbols(data) if not symbol.defined])


def dynamic_required(data: bytes) -> tuple[str, ...]:
    """Those of `dynamic_undefined` without which a shared object cannot be loaded: weak references may stay without a definition."""
    return tuple([symbol.name for symbol in _dynamic_symbols(data) if not symbol.defined and symbol.binding != _STB_WEAK])


def dynamic_defined(data: bytes) -> tuple[str, ...]:
    """The names that a shared object defines for others. Raises `FormatError`."""
    return tuple([symbol.name for symbol in _dynamic_symbols(data) if symbol.defined])


def _dynamic_symbols(data: bytes) -> Iterator[_Symbol]:
    sections = _read_sections(data, _ET_DYN)
    table = _find_section(sections, _SHT_DYNSYM)
    if table is None:
        raise FormatError("the shared object has no dynamic symbol table, or no section header for it")
    return _read_symbols(data, sections, table)


def needed_libraries(data: bytes) -> tuple[str, ...]:
    """The libraries that loading a shared object loads first (`DT_NEEDED`), in order. Raises `FormatError`."""
    sections = _read_sections(data, _ET_DYN)
    table = _find_section(sections, _SHT_DYNAMIC)
    if table is None:
        raise FormatError("the shared object has no dynamic section, or no section header for it")
    records = _read_table(data, table, _DYNAMIC)
    strings = _read_linked_strings(data, sections, table)
    needed: list[str] = []
    for tag, value in _DYNAMIC.iter_unpack(records):
        if tag == _DT_NULL:
            break
        if tag == _DT_NEEDED:
            needed.append(_read_string(strings, value))
    return tuple(needed)


def needed_versions(data: bytes) -> dict[str, tuple[str, ...]]:
    """The symbol versions that a shared object needs of each library (``.gnu.version_r``). Raises `FormatError`.

    Layout: Linux Standard Base Core Specification 5.0, "Symbol Versioning", `Elf64_Verneed` and `Elf64_Vernaux`.
    """
    sections = _read_sections(data, _ET_DYN)
    table = _find_section(sections, _SHT_GNU_VERNEED)
    if table is None:
        return {}
    content = _read_bytes(data, table.offset, table.size, "the needed versions")
    strings = _read_linked_strings(data, sections, table)
    found: dict[str, tuple[str, ...]] = {}
    for at, (names_count, library, first) in _chain(content, _VERNEED, 0, table.info):
        names = [_read_string(strings, name) for _, (name,) in _chain(content, _VERNAUX, at + first, names_count)]
        found[_read_string(strings, library)] = tuple(names)
    return found


def _chain(content: bytes, record: Struct, at: int, count: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The place and the fields of `count` records, each of which ends with the distance to the next one."""
    for _ in range(count):
        if at + record.size > len(content):
            raise FormatError("the needed versions are truncated or damaged")
        *fields, distance = record.unpack_from(content, at)
        yield at, tuple(fields)
        at += distance


def named_sections(data: bytes, names: Collection[str]) -> Iterator[tuple[str, bytes]]:
    """The sections of a relocatable object that have one of these names, with their content. Raises `FormatError`."""
    for name, section in _named(data, _read_sections(data, _ET_REL)):
        if name in names:
            yield name, _read_bytes(data, section.offset, section.size, f"the section {name}")


def sections_like(data: bytes, prefix: str) -> dict[str, bytes]:
    """The sections of an object or a shared object whose names begin so, with their content. Raises `FormatError`."""
    sections = _read_sections(data, _read_header(data).type)
    return {
        name: _read_bytes(data, section.offset, section.size, f"the section {name}")
        for name, section in _named(data, sections)
        if name.startswith(prefix)
    }


def with_sections(data: bytes, contents: Mapping[str, bytes]) -> bytes:
    """The same object with other contents of the same length in those of its sections that have one of these names.

    Raises `FormatError` where one of them has another length.
    """
    edits = []
    for name, section in _named(data, _read_sections(data, _ET_REL)):
        if name in contents:
            if len(contents[name]) != section.size:
                raise FormatError(f"the section {name} has {section.size} bytes, and not {len(contents[name])}")
            edits.append((section.offset, contents[name]))
    return _patched(data, edits)


def data_of(data: bytes, names: Collection[str], places: Collection[str]) -> dict[str, Datum]:
    """The values of variables that a relocatable object defines in sections of these names (`places`).

    Left out are those that linking would change, and those that the file does not hold (.bss). Raises `FormatError`.
    """
    sections = _read_sections(data, _ET_REL)
    usable = {
        number
        for number, (name, section) in enumerate(_named(data, sections, every=True))
        if section.type == _SHT_PROGBITS and name in places
    }
    usable -= {table.info for table in sections if table.type == _SHT_RELA}
    found = {}
    for symbol in _object_symbols(data):
        if symbol.name in names and symbol.section in usable:
            section = sections[symbol.section]
            content = _read_bytes(data, section.offset + symbol.value, symbol.size, f"the variable {symbol.name}")
            alignment = section.alignment if not symbol.value else min(section.alignment, symbol.value & -symbol.value)
            found[symbol.name] = Datum(content, max(alignment, 1), bool(section.flags & _SHF_WRITE))
    return found


def _named(data: bytes, sections: tuple[_Section, ...], *, every: bool = False) -> Iterator[tuple[str, _Section]]:
    """Sections with their names; those that the file does not hold only where `every` is set."""
    header = _read_header(data)
    if header.names_section >= len(sections):
        return
    table = sections[header.names_section]
    strings = _read_bytes(data, table.offset, table.size, "a string table")
    for section in sections:
        if every or section.type != _SHT_NOBITS:
            yield _read_string(strings, section.name), section


def code_sections(data: bytes) -> tuple[CodeSection, ...]:
    """The sections of a relocatable object that hold machine code.

    Only for x86-64 and AArch64: elsewhere linking may move code. Raises `FormatError`.
    """
    architecture = machine(data)
    if architecture not in _ARCHITECTURES_OF_FIXED_CODE:
        raise FormatError(f"linking moves the code of the architecture {architecture}")
    sections = _read_sections(data, _ET_REL)
    names = _find_section(sections, _SHT_SYMTAB)
    symbols = () if names is None else tuple(_read_symbols(data, sections, names, local=True))
    found = []
    for number, section in enumerate(sections):
        if section.type != _SHT_PROGBITS or not section.flags & _SHF_EXECINSTR or not section.size:
            continue
        code = _read_bytes(data, section.offset, section.size, "a section of code")
        places = [
            _place(architecture, *relocation)
            for table in sections
            if table.type == _SHT_RELA and table.info == number
            for relocation in _RELOCATION.iter_unpack(_read_table(data, table, _RELOCATION))
        ]
        functions = [
            (symbol.value, symbol.value + symbol.size, symbol.name)
            for symbol in symbols
            if symbol.section == number and symbol.type == _STT_FUNC
        ]
        found.append(CodeSection(code, tuple(sorted(places)), tuple(sorted(functions))))
    return tuple(found)


def _place(architecture: int, offset: int, kind: int) -> tuple[int, int]:
    """The bytes that a relocation may change: a whole instruction where linkers may relax it."""
    if architecture == EM_AARCH64:
        return offset & ~3, (offset & ~3) + (8 if kind == _R_AARCH64_ABS64 else 4)
    start = offset - _OPCODE if kind in _R_X86_64_THROUGH_GOT else offset
    return max(start, 0), offset + (8 if kind in _R_X86_64_OF_8_BYTES else 4)


def _object_symbols(data: bytes) -> Iterator[_Symbol]:
    """The non-local symbols of a relocatable object; none where it has no symbol table."""
    sections = _read_sections(data, _ET_REL)
    table = _find_section(sections, _SHT_SYMTAB)
    return iter(()) if table is None else _read_symbols(data, sections, table)


def _read_header(data: bytes) -> _Header:
    if not is_elf(data):
        raise FormatError(f"not an ELF file: it starts with {data[: len(_MAGIC)]!r}")
    header = _Header._make(_HEADER.unpack(_read_bytes(data, 0, _HEADER.size, "the ELF header")))
    bits = _CLASSES.get(header.bits, f"class {header.bits}")
    encoding = _ENCODINGS.get(header.encoding, f"encoding {header.encoding}")
    if (bits, encoding) != ("64-bit", "little-endian"):
        raise FormatError(f"an ELF file of {bits} and {encoding}; only 64-bit and little-endian is supported")
    return header


def _read_sections(data: bytes, file_type: int) -> tuple[_Section, ...]:
    """Every section header of a file that must be of `file_type`."""
    header = _read_header(data)
    if header.type != file_type:
        found = _FILE_TYPES.get(header.type, f"of type {header.type}")
        raise FormatError(f"the ELF file is {found}, and not {_FILE_TYPES[file_type]}")
    if header.section_offset == 0:
        return ()
    if header.section_size != _SECTION.size:
        raise FormatError(f"section headers of {header.section_size} bytes, and not {_SECTION.size}")
    count = header.section_count or _extended_count(data, header.section_offset)
    records = _read_bytes(data, header.section_offset, count * _SECTION.size, "the section headers")
    return tuple(map(_Section._make, _SECTION.iter_unpack(records)))


def _extended_count(data: bytes, offset: int) -> int:
    """The number of sections where the ELF header has no room for it: the size field of the first section."""
    return _Section._make(_SECTION.unpack(_read_bytes(data, offset, _SECTION.size, "a section header"))).size


def _find_section(sections: tuple[_Section, ...], section_type: int) -> _Section | None:
    return next((section for section in sections if section.type == section_type), None)


def _read_symbols(
    data: bytes, sections: tuple[_Section, ...], table: _Section, *, local: bool = False
) -> Iterator[_Symbol]:
    """The non-local symbols of a table, which leaves out the null symbol; with `local` all."""
    records = _read_table(data, table, _SYMBOL)
    strings = _read_linked_strings(data, sections, table)
    position = table.offset
    for name, info, *rest in _SYMBOL.iter_unpack(records):
        if info >> 4 != _STB_LOCAL or local:
            yield _Symbol(position, _read_string(strings, name), info, *rest)
        position += _SYMBOL.size


def _read_table(data: bytes, table: _Section, record: Struct) -> bytes:
    """The content of a section that is an array of `record`."""
    if table.entry_size != record.size or table.size % record.size:
        raise FormatError(
            f"a table of {table.size} bytes and {table.entry_size} per entry, not {record.size}"
        )
    return _read_bytes(data, table.offset, table.size, "a table of symbols, relocations or dynamic entries")


def _read_linked_strings(data: bytes, sections: tuple[_Section, ...], table: _Section) -> bytes:
    """The string table that belongs to a section."""
    if table.link >= len(sections):
        raise FormatError(f"a reference to section {table.link} of {len(sections)}")
    strings = sections[table.link]
    return _read_bytes(data, strings.offset, strings.size, "a string table")


def _read_string(strings: bytes, offset: int) -> str:
    # Searching from beyond the end finds nothing, whatever the offset.
    end = strings.find(b"\0", offset)
    if end < 0:
        raise FormatError(f"no terminated string at {offset} of a string table of {len(strings)} bytes")
    return strings[offset:end].decode("utf-8", "surrogateescape")


def _read_bytes(data: bytes, offset: int, size: int, what: str) -> bytes:
    if offset + size > len(data):
        raise FormatError(f"{what} should end at byte {offset + size} of {len(data)}: truncated or damaged")
    return data[offset : offset + size]
