"""Makes changed copies of ELF files in memory: references made weak, definitions hidden or moved, symbols renamed,
relocations removed. Every function raises `FormatError` if the bytes are malformed.
"""

from __future__ import annotations

from itertools import chain, count
from struct import Struct
from typing import TYPE_CHECKING

from compcache.arch.known import architecture_of_elf
from compcache.errors import FormatError
from compcache.images.elf import parts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from compcache.images.elf.parts import Symbol

__all__ = [
    "extract_places", "hide_symbols", "move_definitions", "protect_dynamic", "rename_undefined", "rename_versioned", "weaken_undefined",
    "with_sections",
]  # fmt: skip

_SHN_UNDEF = 0
_STT_TLS = 6
_STV_DEFAULT, _STV_HIDDEN, _STV_PROTECTED = 0, 2, 3
_PLACE = Struct("<qq")
_PROGRAM_HEADERS = Struct("<32xQ14xHH")
_SEGMENT = Struct("<II")  # type and flags
_PT_DYNAMIC, _PF_W = 2, 2
_PROGRAM_HEADER_SIZE = 56
_INFO_AT, _OTHER_AT = 4, 5  # where st_info and st_other lie in a symbol
_PLACE_AT = 24  # where sh_offset and sh_size lie in a section header
_SYMBOL_NAME = Struct("<I")
_SYMBOL_FIELDS = Struct("<BBHQQ")  # of a symbol, behind its name
_SECTION_PLACE = Struct("<QQ")


def weaken_undefined(data: bytes, keep: Collection[str] = ()) -> bytes:
    """Return the object with its undefined symbols made weak, except those in `keep`.

    `dlopen(RTLD_NOW)` refuses an image if a strong symbol is missing from the process. A missing weak symbol is null, and only the code
    that uses the symbol is affected. Thread-local symbols keep their binding, because null has no meaning for them. Linkers record a needed
    library, and the version of its symbol, only for a strong reference. Without a version, glibc binds to the oldest version (`pow`,
    `memcpy`). Therefore `keep` should contain the symbols that libraries define. Raise `FormatError` for a malformed file.
    """
    kept = frozenset(keep)
    edits = []
    for symbol in parts.object_symbols(data):
        strong = symbol.binding == parts.STB_GLOBAL and symbol.type != _STT_TLS
        if strong and not symbol.defined and symbol.name not in kept:
            edits.append((symbol.position + _INFO_AT, bytes([parts.STB_WEAK << 4 | symbol.type])))
    return _apply_edits(data, edits)


def hide_symbols(data: bytes, keep: Collection[str] = ()) -> bytes:
    """Make the defined symbols of an object hidden, except those in `keep`, and return the changed object.

    Objects that are linked together see each other's hidden symbols. The dynamic symbol table of the image does not contain hidden
    symbols. Unlike a version script, this works for any name. Raise `FormatError` for a malformed file.
    """
    kept = frozenset(keep)
    edits = []
    for symbol in parts.object_symbols(data):
        visible = symbol.other & 3 in (_STV_DEFAULT, _STV_PROTECTED)
        if visible and symbol.defined and symbol.name not in kept:
            edits.append((symbol.position + _OTHER_AT, bytes([symbol.other & ~3 | _STV_HIDDEN])))
    return _apply_edits(data, edits)


def rename_versioned(data: bytes, imports: Collection[str]) -> tuple[bytes, dict[str, str]]:
    """Rename definitions and `imports` whose names contain ``@`` (``k@1``, ``vcall@@16``, `.symver`).

    Return the changed object and the new names.

    Linkers read the part after ``@`` as a version, and require a script that defines it. A new name is never in use by another symbol.
    The new names are in a copy of the string table at the end of the file. Raise `FormatError` for a malformed file.
    """
    symbols = [symbol for symbol in parts.object_symbols(data) if "@" in symbol.name and (symbol.defined or symbol.name in imports)]
    used_names = {symbol.name for symbol in parts.object_symbols(data)} if symbols else set()
    names = {symbol.name: _add_free_name(symbol.name.replace("@", "."), used_names) for symbol in symbols}
    return _rename_symbols(data, [(symbol, names[symbol.name]) for symbol in symbols]), names


def rename_undefined(data: bytes, names: Mapping[str, str]) -> bytes:
    """Return the object with undefined symbols renamed, from old to new, by `names`. Raise `FormatError` for a malformed file."""
    symbols = [symbol for symbol in parts.object_symbols(data) if symbol.name in names and not symbol.defined]
    return _rename_symbols(data, [(symbol, names[symbol.name]) for symbol in symbols])


def _rename_symbols(data: bytes, names: Collection[tuple[Symbol, str]]) -> bytes:
    """Return an object with renamed symbols, and a changed string table at its end. Raise `FormatError` if the object is malformed."""
    if not names:
        return data
    sections = parts.read_sections(data, parts.ET_REL)
    number = next(number for number, section in enumerate(sections) if section.type == parts.SHT_SYMTAB)
    table = sections[number].link
    strings = bytearray(parts.read_linked_strings(data, sections, sections[number]))
    edits = []
    for symbol, name in names:
        edits.append((symbol.position, _SYMBOL_NAME.pack(len(strings))))
        strings += name.encode("utf-8", "surrogateescape") + b"\0"
    return _with_sections_at_end(_apply_edits(data, edits), {table: strings})


def move_definitions(data: bytes, names: Mapping[str, str]) -> bytes:
    """Move definitions to other names, as hidden symbols, and return the changed object.

    The old names become undefined symbols. References to them stay. `names` has the new names by the old names.

    Raise `FormatError` if the object does not define an old name, or has a symbol with a new name.
    """
    sections = parts.read_sections(data, parts.ET_REL)
    number = next((number for number, section in enumerate(sections) if section.type == parts.SHT_SYMTAB), 0)
    symbols = {symbol.name: symbol for symbol in parts.object_symbols(data)}
    table, strings = bytearray(), bytearray()
    if symbols:
        table += parts.read_table(data, sections[number], parts.SYMBOL)
        strings += parts.read_linked_strings(data, sections, sections[number])
    for name, new_name in names.items():
        old = symbols.get(name)
        if old is None or not old.defined or new_name in symbols:
            raise FormatError(f"the object does not define the symbol {name!r}, or has a symbol {new_name!r}")
        fields = parts.SYMBOL.unpack_from(data, old.position)
        undefined = parts.STB_GLOBAL << 4, _STV_DEFAULT, _SHN_UNDEF, 0, 0
        _SYMBOL_FIELDS.pack_into(table, old.position - sections[number].offset + _INFO_AT, *undefined)
        table += parts.SYMBOL.pack(len(strings), parts.STB_GLOBAL << 4 | old.type, _STV_HIDDEN, *fields[3:])
        strings += new_name.encode("utf-8", "surrogateescape") + b"\0"
    return _with_sections_at_end(data, {number: table, sections[number].link: strings})


def _with_sections_at_end(data: bytes, contents: Mapping[int, bytes | bytearray]) -> bytes:
    """Return an object with new contents of sections, by number. They are at the end of the file, because the sections may grow."""
    first, end = parts.read_header(data).section_offset, len(data)
    edits, pieces = [], []
    for number, content in contents.items():
        padding = bytes(-end % 8)
        end += len(padding)
        edits.append((first + number * parts.SECTION.size + _PLACE_AT, _SECTION_PLACE.pack(end, len(content))))
        pieces += [padding, content]
        end += len(content)
    return b"".join([_apply_edits(data, edits), *pieces])


def _add_free_name(name: str, used_names: set[str]) -> str:
    """Add a name to `used_names`, with a number if the name is already taken, and return the added name."""
    candidates = chain([name], (f"{name}.{number}" for number in count()))
    free = next(candidate for candidate in candidates if candidate not in used_names)
    used_names.add(free)
    return free


def extract_places(data: bytes, names: Collection[str], table: str) -> tuple[bytes, dict[str, bytes]]:
    """Remove the relocations of undefined symbols, so that the dynamic linker does not look these symbols up.

    Returns:
        The changed shared object, and the places that the removed relocations fill, by symbol. A place is two i64: the distance from the
        symbol `table` to the address to fill in, and the addend.

    Raises:
        FormatError: the shared object is malformed, does not define `table`, or these symbols have a relocation that stores no address.
    """
    sections = parts.read_sections(data, parts.ET_DYN)
    dynamic = parts.find_section(sections, parts.SHT_DYNSYM)
    if dynamic is None:
        raise FormatError("the shared object has no section header for a dynamic symbol table")
    symbols = list(parts.read_symbols(data, sections, dynamic, local=True))
    start = next((symbol.value for symbol in symbols if symbol.name == table), None)
    if start is None:
        raise FormatError(f"the shared object does not define the symbol {table!r}")
    symbol_names = {number: symbol.name for number, symbol in enumerate(symbols) if symbol.name in names and not symbol.defined}
    relocations = architecture_of_elf(parts.read_header(data).machine).relocations
    patched = bytearray(data)
    places: dict[str, bytes] = {}
    for section in sections:
        if section.type != parts.SHT_RELA or not section.flags & parts.SHF_ALLOC:
            continue
        records = parts.read_table(data, section, parts.RELOCATION)
        for index, (offset, kind, number, addend) in enumerate(parts.RELOCATION.iter_unpack(records)):
            name = symbol_names.get(number)
            if name is None:
                continue
            if kind not in relocations.with_addend and kind not in relocations.in_table:
                raise FormatError(f"a relocation of the symbol {name!r} has the type {kind}, which does not store an address")
            places[name] = places.get(name, b"") + _PLACE.pack(offset - start, addend if kind in relocations.with_addend else 0)
            parts.RELOCATION.pack_into(patched, section.offset + index * parts.RELOCATION.size, offset, 0, 0, 0)
    return bytes(patched), places


def protect_dynamic(data: bytes) -> bytes:
    """Make the dynamic section read-only for the dynamic linker, and return the changed shared object.

    Since version 2.35, glibc writes addresses into that section unless the program header forbids it (`l_ld_readonly`). Each image
    without relocations would need a page of private memory for these addresses. Raise `FormatError` for a malformed file.
    """
    parts.read_header(data)
    start, size, number = _PROGRAM_HEADERS.unpack_from(data)
    if number and size != _PROGRAM_HEADER_SIZE:
        raise FormatError(f"the program headers of the shared object have {size} bytes each, not {_PROGRAM_HEADER_SIZE}")
    patched = bytearray(data)
    for position in range(start, start + _PROGRAM_HEADER_SIZE * number, _PROGRAM_HEADER_SIZE):
        kind, flags = _SEGMENT.unpack(parts.read_bytes(data, position, _SEGMENT.size, "a program header"))
        if kind == _PT_DYNAMIC:
            _SEGMENT.pack_into(patched, position, kind, flags & ~_PF_W)
    return bytes(patched)


def with_sections(data: bytes, contents: Mapping[str, bytes]) -> bytes:
    """Replace the content of sections, given by name, and return the changed object. Names of missing sections are ignored.

    Raise `FormatError` if the object is malformed, or the length of a section would change.
    """
    edits = []
    for name, section in parts.names_and_sections(data, parts.read_sections(data, parts.ET_REL)):
        if name in contents:
            if len(contents[name]) != section.size:
                raise FormatError(f"the section {name} has {section.size} bytes, but its new content has {len(contents[name])} bytes")
            edits.append((section.offset, contents[name]))
    return _apply_edits(data, edits)


def _apply_edits(data: bytes, edits: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the data with the bytes at these offsets replaced. Edits must not overlap. The data, which may be large, is copied once."""
    view = memoryview(data)
    pieces: list[bytes | memoryview] = []
    copied_end = 0
    for offset, new in sorted(edits):
        pieces += [view[copied_end:offset], new]
        copied_end = offset + len(new)
    return b"".join([*pieces, view[copied_end:]]) if pieces else data
