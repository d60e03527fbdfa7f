"""Reads the soname of a shared library, and the versions of its symbols. Large files are mapped, and only a few pages are read.

Layout: System V gABI, chapter 5; Linux Standard Base Core Specification 5.0, "Symbol Versioning"; the hash table is GNU's
(https://sourceware.org/legacy-ml/binutils/2006-10/msg00377.html).
"""

from __future__ import annotations

import functools
import mmap
from struct import Struct
from typing import TYPE_CHECKING

from compcache.errors import FormatError
from compcache.images.elf import parts
from compcache.interrupts import as_format_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.images.elf.parts import Section

__all__ = ["SharedLibrary", "gnu_hash", "shared_library"]

_SHT_GNU_HASH, _SHT_GNU_VERDEF, _SHT_GNU_VERSYM = 0x6FFFFFF6, 0x6FFFFFFD, 0x6FFFFFFF
_DT_SONAME = 14
_VERDEF, _VERDAUX, _VERSYM = Struct("<HHHHIII"), Struct("<I4x"), Struct("<H")
_HASH_HEADER, _PADDING, _HASH, _WORD_OF_FILTER = Struct("<III"), 4, Struct("<I"), 8
_VER_FLG_BASE, _HIDDEN, _UNVERSIONED = 1, 0x8000, 1


class SharedLibrary:
    """The dynamic symbols of a shared library's file.

    `soname` is the name that images record for a needed library; empty if the library has none.

    Raises:
        FormatError: the library has no section headers for its dynamic section or its symbols, or is damaged.
        struct.error: the table of the library's versions is truncated.
    """

    def __init__(self, data: bytes) -> None:
        sections = parts.read_sections(data, parts.ET_DYN)
        dynamic, symbols = parts.find_section(sections, parts.SHT_DYNAMIC), parts.find_section(sections, parts.SHT_DYNSYM)
        if dynamic is None or symbols is None:
            missing = "dynamic section" if dynamic is None else "dynamic symbol table"
            raise FormatError(f"the shared library has no section header for a {missing}")
        self._strings = parts.read_linked_strings(data, sections, symbols)
        self._symbols = parts.read_table(data, symbols, parts.SYMBOL)
        self._hash = _section_content(data, parts.find_section(sections, _SHT_GNU_HASH))
        self._versions = _section_content(data, parts.find_section(sections, _SHT_GNU_VERSYM))
        self._names = _version_names(data, sections)
        strings = parts.read_linked_strings(data, sections, dynamic)
        sonames = [parts.read_string(strings, value) for tag, value in parts.dynamic_entries(data, dynamic) if tag == _DT_SONAME]
        self.soname = sonames[0] if sonames else ""

    def version_of(self, symbol: str) -> str | None:
        """Return the version of a symbol that newly linked objects bind to, or "" if the symbol has no version.

        The result is None if the library does not define the symbol, or defines only versions for old objects.

        Raise `FormatError` if the tables of the library are damaged, or it has no hash table of GNU.
        """
        with as_format_error(f"the tables for the symbol {symbol!r} in the library {self.soname!r} are damaged"):
            return self._find_version(symbol)

    def _find_version(self, symbol: str) -> str | None:
        """Return the result of `version_of`. Raise any exception if the tables of the library are damaged."""
        for number in self._symbol_numbers(symbol.encode("utf-8", "surrogateescape")):
            if not self._versions:
                return ""
            (version,) = _VERSYM.unpack_from(self._versions, number * _VERSYM.size)
            if version == _UNVERSIONED:
                return ""
            if version > _UNVERSIONED and not version & _HIDDEN:
                return self._names[version]
        return None

    def _symbol_numbers(self, name: bytes) -> Iterator[int]:
        """Yield the symbol table numbers of the definitions of a name. Versions of a symbol have one name."""
        wanted_hash = gnu_hash(name)
        buckets, first_number, words = _HASH_HEADER.unpack_from(self._hash)
        start = _HASH_HEADER.size + _PADDING + words * _WORD_OF_FILTER
        (number,) = _HASH.unpack_from(self._hash, start + wanted_hash % buckets * _HASH.size)
        chain = start + buckets * _HASH.size
        while number >= first_number:
            (hash_value,) = _HASH.unpack_from(self._hash, chain + (number - first_number) * _HASH.size)
            if hash_value | 1 == wanted_hash | 1:  # the lowest bit only marks the end of a chain
                string, _, _, section, _, _ = parts.SYMBOL.unpack_from(self._symbols, number * parts.SYMBOL.size)
                if section and self._strings.startswith(name + b"\0", string):
                    yield number
            if hash_value & 1:
                return
            number += 1


@functools.lru_cache(maxsize=16)  # each image exports one name
def gnu_hash(name: bytes) -> int:
    """Return the hash of a name in GNU's hash table."""
    value = 5381
    for byte in name:
        value = value * 33 + byte & 0xFFFFFFFF
    return value


def _section_content(data: bytes, section: Section | None) -> bytes:
    """Return the content of a section, or b"" without the section."""
    return b"" if section is None else data[section.offset : section.offset + section.size]


def _version_names(data: bytes, sections: tuple[Section, ...]) -> dict[int, str]:
    """Return the names of the versions that a library defines, by their numbers; {} for a library without versions.

    Raise `FormatError` or `struct.error` if the tables are damaged.
    """
    table = parts.find_section(sections, _SHT_GNU_VERDEF)
    if table is None:
        return {}
    content, strings = _section_content(data, table), parts.read_linked_strings(data, sections, table)
    names, position = {}, 0
    for _ in range(table.info):
        _, flags, number, _, _, name_distance, distance = _VERDEF.unpack_from(content, position)
        if not flags & _VER_FLG_BASE:
            names[number] = parts.read_string(strings, _VERDAUX.unpack_from(content, position + name_distance)[0])
        if not distance:
            break
        position += distance
    return names


@functools.lru_cache(maxsize=64)
def shared_library(path: str) -> SharedLibrary:
    """Read the dynamic symbols of the shared library at a path. The result is cached, even if the file changes.

    Raise `OSError` if the file cannot be read, or `FormatError` if the file is not a 64-bit little-endian shared library, or is damaged.
    """
    problem = f"{path} cannot be read as a shared library"
    with open(path, "rb") as file, as_format_error(problem), mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return SharedLibrary(data)  # type: ignore[arg-type]  # slices of a map are bytes
