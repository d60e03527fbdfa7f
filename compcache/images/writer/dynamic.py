"""Builds the tables of an image for the dynamic linker: symbols and versions, needed libraries, relocations.

Layout: System V gABI, chapter 5; Linux Standard Base Core Specification 5.0, "Symbol Versioning"; the hash table is GNU's
(https://sourceware.org/legacy-ml/binutils/2006-10/msg00377.html).
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from compcache.errors import FormatError
from compcache.images.elf.exported import gnu_hash
from compcache.images.elf.parts import RELOCATION, SHF_ALLOC, SHT_DYNAMIC, SHT_DYNSYM, SHT_RELA, STB_GLOBAL, STB_WEAK, SYMBOL, StringTable
from compcache.images.writer.layout import Output

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from compcache.images.writer.relocations import DynamicRelocation
    from compcache.images.writer.symbols import ExportedSymbol

__all__ = ["Dynamic", "NeededSymbol"]

_SHT_STRTAB, _SHT_GNU_HASH, _SHT_GNU_VERSYM, _SHT_GNU_VERNEED = 3, 0x6FFFFFF6, 0x6FFFFFFF, 0x6FFFFFFE
_SHF_WRITE = 1
_STT_OBJECT, _STV_PROTECTED = 1, 3
_NULL, _NEEDED, _STRTAB, _SYMTAB, _RELA, _RELASZ, _RELAENT, _STRSZ, _SYMENT = 0, 1, 5, 6, 7, 8, 9, 10, 11
_INIT_ARRAY, _FINI_ARRAY, _INIT_ARRAYSZ, _FINI_ARRAYSZ, _RUNPATH, _FLAGS = 25, 26, 27, 28, 29, 30
_GNU_HASH, _VERSYM, _RELACOUNT, _FLAGS_1, _VERNEED, _VERNEEDNUM = 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFF9, 0x6FFFFFFB, 0x6FFFFFFE, 0x6FFFFFFF
_BIND_NOW, _NOW = 8, 1
_TAG = Struct("<QQ")
_WORD = Struct("<Q")
_VERSION_OF_SYMBOL = Struct("<H")
_LIBRARY, _VERSION = Struct("<HHIII"), Struct("<IHHII")
#: The hash table of the one exported symbol: one bucket, and a filter of one word.
_HASH = Struct("<IIIIQII")
_SHIFT = 6
_UNVERSIONED = 1


class NeededSymbol(NamedTuple):
    """A symbol that the image needs from another image.

    A weak symbol may be missing. `type` is an ``STT_`` number. `library` and `version` are empty if any image may define the symbol.
    """

    name: str
    is_weak: bool
    type: int
    library: str = ""
    version: str = ""


class Dynamic:
    """The sections for the dynamic linker. The constructor determines their sizes; `fill` sets their contents once addresses are known.

    The image has no soname, which the dynamic linker would read in each image of the process whenever it opens another one.

    Args:
        symbols: the symbols that the image needs from other images.
        export: the symbol that the image exports.
        run_paths: further directories with needed libraries.
        relocations: the number of relocations for the dynamic linker.
        arrays: the image's sections by name. Only ``.init_array`` and ``.fini_array`` are used.
    """

    def __init__(
        self, symbols: Sequence[NeededSymbol], export: str, run_paths: Sequence[str], relocations: int, arrays: Mapping[str, Output]
    ) -> None:
        self._strings = StringTable()
        self._needed_symbols = symbols
        self._export = export
        self._arrays = arrays
        self._numbers = {symbol.name: number for number, symbol in enumerate(symbols, 1)}
        self._names = [self._strings.add(symbol.name) for symbol in symbols]
        self._exported_name = self._strings.add(export)
        needed = dict.fromkeys([symbol.library for symbol in symbols if symbol.library and not symbol.is_weak])
        self._tags: list[tuple[int, int]] = [(_NEEDED, self._strings.add(library)) for library in needed]
        if run_paths:
            self._tags.append((_RUNPATH, self._strings.add(":".join(run_paths))))
        versions, self._needs = self._add_versions(needed)
        count = len(symbols) + 2
        self.hash = Output(".gnu.hash", _SHT_GNU_HASH, SHF_ALLOC, 8, 0, _HASH.size)
        self.symbols = Output(".dynsym", SHT_DYNSYM, SHF_ALLOC, 8, SYMBOL.size, count * SYMBOL.size)
        self.strings = Output(".dynstr", _SHT_STRTAB, SHF_ALLOC, 1, 0, len(self._strings.content))
        self.relocations = Output(".rela.dyn", SHT_RELA, SHF_ALLOC, 8, RELOCATION.size, relocations * RELOCATION.size)
        self.versions = Output(".gnu.version", _SHT_GNU_VERSYM, SHF_ALLOC, 2, 2, len(versions))
        self.needs = Output(".gnu.version_r", _SHT_GNU_VERNEED, SHF_ALLOC, 8, 0, len(self._needs))
        self.table = Output(".dynamic", SHT_DYNAMIC, SHF_ALLOC | _SHF_WRITE, 8, _TAG.size)
        self.strings.content, self.versions.content, self.needs.content = self._strings.content, versions, self._needs
        self.symbols.link = self.needs.link = self.table.link = self.strings
        self.hash.link = self.versions.link = self.relocations.link = self.symbols
        self.symbols.info = 1
        self.needs.info = self._needs_count
        self.table.size = _TAG.size * len(self._all_tags(0))

    def outputs(self) -> list[Output]:
        """Return the sections of the image that contain the tables."""
        sections = [self.hash, self.symbols, self.strings, self.table]
        return sections + [output for output in (self.relocations, self.versions, self.needs) if output.size]

    def _add_versions(self, libraries: Collection[str]) -> tuple[bytes, bytes]:
        """Add the names of the versions of symbols in `libraries`, and of these libraries, to the strings. Set `_needs_count`.

        Return the content of ``.gnu.version`` (a version number for each symbol) and of ``.gnu.version_r`` (the versions of libraries).
        Both are empty if no symbol has a version.
        """
        numbers_by_library: dict[str, dict[str, int]] = {}
        numbers = [0]
        last_number = _UNVERSIONED
        for symbol in self._needed_symbols:
            number = _UNVERSIONED
            if symbol.version and symbol.library in libraries:
                numbers_by_version = numbers_by_library.setdefault(symbol.library, {})
                if symbol.version not in numbers_by_version:
                    last_number += 1
                    numbers_by_version[symbol.version] = last_number
                number = numbers_by_version[symbol.version]
            numbers.append(number)
        self._needs_count = len(numbers_by_library)
        if not numbers_by_library:
            return b"", b""
        return b"".join(map(_VERSION_OF_SYMBOL.pack, [*numbers, _UNVERSIONED])), self._add_needs(numbers_by_library)

    def _add_needs(self, numbers_by_library: Mapping[str, Mapping[str, int]]) -> bytes:
        """Add the names of libraries and of their versions to the strings. Return the content of ``.gnu.version_r``.

        `numbers_by_library` has the numbers of the versions by library and name.
        """
        parts = []
        libraries_left = len(numbers_by_library)
        for library, numbers in numbers_by_library.items():
            libraries_left -= 1
            size = _LIBRARY.size + len(numbers) * _VERSION.size
            parts.append(_LIBRARY.pack(1, len(numbers), self._strings.add(library), _LIBRARY.size, size if libraries_left else 0))
            versions_left = len(numbers)
            for version, number in numbers.items():
                versions_left -= 1
                next_version = _VERSION.size if versions_left else 0
                parts.append(_VERSION.pack(_elf_hash(version), 0, number, self._strings.add(version), next_version))
        return b"".join(parts)

    def _all_tags(self, relative: int) -> list[tuple[int, int]]:
        """Return the entries of the dynamic section. `relative` counts the relative relocations, which come first."""
        tags = [*self._tags]
        for output, start, size in ((".init_array", _INIT_ARRAY, _INIT_ARRAYSZ), (".fini_array", _FINI_ARRAY, _FINI_ARRAYSZ)):
            if output in self._arrays:
                tags += [(start, self._arrays[output].address), (size, self._arrays[output].size)]
        tags += [
            (_GNU_HASH, self.hash.address), (_STRTAB, self.strings.address), (_SYMTAB, self.symbols.address),
            (_STRSZ, self.strings.size), (_SYMENT, SYMBOL.size),
        ]  # fmt: skip
        if self.relocations.size:
            tags += [
                (_RELA, self.relocations.address), (_RELASZ, self.relocations.size), (_RELAENT, RELOCATION.size), (_RELACOUNT, relative),
            ]  # fmt: skip
        tags += [(_FLAGS, _BIND_NOW), (_FLAGS_1, _NOW)]
        if self.needs.size:
            tags += [(_VERNEED, self.needs.address), (_VERNEEDNUM, self._needs_count), (_VERSYM, self.versions.address)]
        return [*tags, (_NULL, 0)]

    def fill(self, exported: ExportedSymbol, relocations: Sequence[DynamicRelocation], relative: int) -> None:
        """Set the contents of all sections. Every section of the image must already have its address.

        Args:
            exported: the place of the exported symbol.
            relocations: the relocations for the dynamic linker.
            relative: the type of relocations for addresses in this image.

        Raises:
            FormatError: the number of relocations differs from the number given to the constructor.
        """
        if len(relocations) * RELOCATION.size != self.relocations.size:
            raise FormatError(
                f"the image has {len(relocations)} relocations for the dynamic linker, "
                f"but space for {self.relocations.size // RELOCATION.size}"
            )
        self.symbols.content = self._encode_symbols(exported)
        self.hash.content = _hash_table(self._export, len(self._needed_symbols) + 1)
        self.relocations.content = self._encode_relocations(relocations, relative)
        count = sum(kind == relative for _, _, kind, _ in relocations)
        self.table.content = b"".join([_TAG.pack(*tag) for tag in self._all_tags(count)])

    def _encode_symbols(self, exported: ExportedSymbol) -> bytes:
        """Return the content of the symbol table: an empty symbol, the needed symbols, and the exported symbol."""
        info = STB_GLOBAL << 4 | _STT_OBJECT
        rows = [bytes(SYMBOL.size)]
        for name, symbol in zip(self._names, self._needed_symbols, strict=True):
            rows.append(SYMBOL.pack(name, (STB_WEAK if symbol.is_weak else STB_GLOBAL) << 4 | symbol.type, 0, 0, 0, 0))
        rows.append(SYMBOL.pack(self._exported_name, info, _STV_PROTECTED, exported.section.number, exported.address, exported.size))
        return b"".join(rows)

    def _encode_relocations(self, relocations: Iterable[DynamicRelocation], relative: int) -> bytes:
        """Return the content of the relocation table. Relocations of the type `relative` come first, as DT_RELACOUNT requires."""
        numbers = self._numbers
        ordered = sorted([(kind != relative, numbers.get(name, 0), place, kind, addend) for name, place, kind, addend in relocations])
        pack = RELOCATION.pack
        return b"".join([pack(place, kind, symbol, addend) for _, symbol, place, kind, addend in ordered])


def _hash_table(name: str, number: int) -> bytes:
    """Return a GNU hash table with one symbol: with one bucket, its hash is the whole chain."""
    value = gnu_hash(name.encode("utf-8", "surrogateescape"))
    filtered = 1 << value % 64 | 1 << (value >> _SHIFT) % 64
    return _HASH.pack(1, number, 1, _SHIFT, filtered, number, value | 1)


def _elf_hash(name: str) -> int:
    """Return the hash of a version's name (System V ABI, "Hash Table")."""
    value = 0
    for byte in name.encode("utf-8", "surrogateescape"):
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high
    return value
