"""Relocations of the objects: the tables that they need, and their effect.

`scan` counts the relocations for the dynamic linker, before anything has an address. `Relocator` fills in addresses and lists the
remaining relocations.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from compcache.arch.architecture import ADDRESS, CALL, DISTANCE, LOW, NOTHING, SYMBOL, TABLE, TLS_MODULE, TLS_OFFSET, TLS_PAIR
from compcache.errors import FormatError
from compcache.images.elf.parts import SHF_ALLOC
from compcache.images.writer.inputs import SHF_WRITE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from compcache.arch.architecture import Fixup, Linking
    from compcache.images.writer.inputs import Input, InputSection
    from compcache.images.writer.layout import Piece

    #: The key of a table entry: a symbol of another image, or a symbol of an object, by the numbers of both.
    Key = str | tuple[int, int]

__all__ = ["DynamicRelocation", "Relocator", "Tables", "scan"]

_SIZE = 8
_ENTRY = Struct("<Q")
_PAGE = -0x1000
#: The entry for this module's own thread-local variables.
_MODULE = (-1, 0)


class DynamicRelocation(NamedTuple):
    """A relocation that is left to the dynamic linker. `name` is empty if it refers to this image."""

    name: str
    place: int
    type: int
    addend: int


class Tables:
    """The tables that the image needs: numbered entries, and the number of relocations for the dynamic linker."""

    def __init__(self, imports: Collection[str]) -> None:
        self._imports = imports
        self.entries: dict[Key, int] = {}  # of the global offset table
        self.pairs: dict[Key, int] = {}  # of thread-local variables, behind the entries
        self.stubs: dict[str, int] = {}
        self.names: dict[str, None] = {}  # of other images, as requested from the dynamic linker
        self.relocations = 0

    def add_address(self, name: str | None) -> None:
        """Fill in an address: of a symbol of another image, or of a place in this image."""
        if name is None:
            self.relocations += 1
        elif name not in self._imports:
            self.names[name] = None
            self.relocations += 1

    def add_entry(self, key: Key) -> None:
        """Add an entry for a symbol."""
        if key not in self.entries:
            self.entries[key] = len(self.entries)
            self.add_address(key if isinstance(key, str) else None)

    def add_stub(self, name: str) -> None:
        """Add code that jumps to a symbol of another image."""
        self.stubs.setdefault(name, len(self.stubs))
        self.add_entry(name)

    def add_pair(self, key: Key, relocations: int) -> None:
        """Add a pair of entries for a thread-local variable. A variable of this image takes one relocation, because its offset is known."""
        if key not in self.pairs:
            self.pairs[key] = len(self.pairs)
            self.relocations += relocations if isinstance(key, str) else 1
            if isinstance(key, str):
                self.names[key] = None

    def size(self) -> int:
        """Return the size of the global offset table, in bytes."""
        return _SIZE * (len(self.entries) + 2 * len(self.pairs))


def scan(inputs: Sequence[Input], outside: Sequence[Mapping[int, str]], imports: Collection[str]) -> Tables:
    """Find the needs of the mapped sections. `outside` has the symbols of other images, by object.

    Raises:
        FormatError: a relocation is unknown, or would change a read-only part.
    """
    tables = Tables(imports)
    for owner, one in enumerate(inputs):
        for section in one.sections:
            if section.relocations and section.flags & SHF_ALLOC:
                unknown = {kind for _, kind, _, _ in section.relocations}.difference(one.linking.fixups)
                if unknown:
                    raise FormatError(f"relocations of the type {min(unknown)} are not supported")
                _scan(tables, one, section, owner, outside[owner])
    return tables


def _scan(tables: Tables, one: Input, section: InputSection, owner: int, outside: Mapping[int, str]) -> None:
    fixups = one.linking.fixups
    for at, kind, symbol, addend in section.relocations:
        fixup = fixups[kind]
        if fixup.to == SYMBOL:
            if fixup.form == ADDRESS:
                if not section.flags & SHF_WRITE:
                    raise FormatError(f"the read-only section {section.name} holds an address")
                tables.add_address(outside.get(symbol))
        elif fixup.to == CALL:
            if symbol in outside:
                tables.add_stub(outside[symbol])
        elif fixup.to == TABLE:
            if symbol in outside or not _can_relax(one, section, at, fixup, addend):
                tables.add_entry(outside.get(symbol) or (owner, symbol))
        elif fixup.to in (TLS_PAIR, TLS_MODULE):
            tables.add_pair(_MODULE if fixup.to == TLS_MODULE else outside.get(symbol) or (owner, symbol), len(one.linking.tls_pair))


def _can_relax(one: Input, section: InputSection, at: int, fixup: Fixup, addend: int) -> bool:
    code = memoryview(one.data)[section.offset : section.offset + section.size]
    return fixup.relaxes and one.linking.can_relax(code, at, addend)


class Relocator:
    """Applies relocations.

    Args:
        linking: the known relocations of the architecture.
        tables: the tables of `scan`.
        outside: the symbols of other images, by object.
        values: the addresses of symbols, by object; None for symbols without one here.
        imports: the names whose addresses are filled in elsewhere.
        table: the address of the global offset table.
        stubs: the address of the procedure linkage table.
        thread_start: the address of the template for thread-local variables.
    """

    def __init__(
        self, linking: Linking, tables: Tables, outside: Sequence[Mapping[int, str]], values: Sequence[Sequence[int | None]],
        imports: Collection[str], table: int, stubs: int, thread_start: int,
    ) -> None:  # fmt: skip
        self._linking = linking
        self._tables = tables
        self._outside = outside
        self._values = values
        self._imports = imports
        self._thread_start = thread_start
        self._entries = {key: table + _SIZE * number for key, number in tables.entries.items()}
        pairs = table + _SIZE * len(tables.entries)
        self._pairs = {key: pairs + 2 * _SIZE * number for key, number in tables.pairs.items()}
        self._stubs = {name: stubs + linking.stub_size * number for name, number in tables.stubs.items()}
        self.left: list[DynamicRelocation] = []
        self.places: dict[str, list[tuple[int, int]]] = {}  # of imports: address and what is to be added

    def relocate(self, piece: Piece, start: int, content: bytearray) -> None:
        """Relocate a part of a section at its mapped address.

        Raises:
            FormatError: a symbol has no address for this kind of reference.
            ValueError, struct.error: a distance is too large.
        """
        owner = piece.owner
        fixups, values = self._linking.fixups, self._values[owner]
        for at, kind, symbol, addend in piece.section.relocations:
            to, form, store, relaxes = fixups[kind]
            value = values[symbol]
            if value is None or to > CALL or form == ADDRESS:
                if relaxes and value is not None and self._linking.can_relax(memoryview(content), at, addend):
                    self._linking.relax(content, at, value + addend - start - at)
                    continue
                value = self._target(owner, start + at, fixups[kind], symbol, addend)
                if value is None:
                    continue
            if form == DISTANCE:
                store(content, at, value + addend - start - at)
            elif form == LOW:
                store(content, at, value + addend)
            else:
                store(content, at, (value + addend & _PAGE) - (start + at & _PAGE))

    def _target(self, owner: int, place: int, fixup: Fixup, symbol: int, addend: int) -> int | None:
        """Return the address to which an indirect relocation refers; None if nothing is left to store."""
        name = self._outside[owner].get(symbol)
        key = name or (owner, symbol)
        if fixup.to == SYMBOL and fixup.form == ADDRESS:
            if name is None:
                self.left.append(DynamicRelocation("", place, self._linking.relative, self._value(owner, symbol) + addend))
            else:
                self._ask(name, place, self._linking.absolute, addend)
            return None
        if fixup.to == TLS_OFFSET:
            return self._value(owner, symbol) - self._thread_start
        if fixup.to == NOTHING:
            return None
        if addend and fixup.form != DISTANCE:
            raise FormatError("table entries with an addend are not supported")
        if fixup.to == CALL and name is not None:
            return self._stubs[name]
        if fixup.to == TABLE:
            return self._entries[key]
        if fixup.to in (TLS_PAIR, TLS_MODULE):
            return self._pairs[_MODULE if fixup.to == TLS_MODULE else key]
        what = f"symbol {symbol} of an object" if name is None else repr(name)
        raise FormatError(f"the object refers to {what} by a distance, but it is not in this image")

    def relocate_debug(self, piece: Piece, content: bytearray) -> None:
        """Relocate a part of a section that is not mapped. Symbols of other images are 0 there."""
        values, linking = self._values[piece.owner], self._linking
        for at, kind, symbol, addend in piece.section.relocations:
            store = linking.debug.get(kind)
            if store is None:
                raise FormatError(f"relocations of the type {kind} are not supported in debug sections")
            value = values[symbol]
            if kind in linking.debug_tls and value is not None:
                value -= self._thread_start
            store(content, at, 0 if value is None else value + addend)

    def _ask(self, name: str, place: int, kind: int, addend: int) -> None:
        if name in self._imports:
            self.places.setdefault(name, []).append((place, addend))
        else:
            self.left.append(DynamicRelocation(name, place, kind, addend))

    def table(self) -> bytes:
        """Return the content of the global offset table; its relocations are listed."""
        for key, address in self._entries.items():
            if isinstance(key, str):
                self._ask(key, address, self._linking.in_table, 0)
            else:
                self.left.append(DynamicRelocation("", address, self._linking.relative, self._value(*key)))
        content = bytearray(self._tables.size())
        for key, address in self._pairs.items():
            at = len(self._entries) * _SIZE + 2 * _SIZE * self._tables.pairs[key]
            self._add_pair(key, address, content, at)
        return bytes(content)

    def _add_pair(self, key: Key, address: int, content: bytearray, at: int) -> None:
        first, *second = self._linking.tls_pair
        if isinstance(key, str):
            self.left.append(DynamicRelocation(key, address, first, 0))
            self.left += [DynamicRelocation(key, address + _SIZE, kind, 0) for kind in second]
            return
        offset = 0 if key == _MODULE else self._value(*key) - self._thread_start
        self.left.append(DynamicRelocation("", address, first, 0 if second else offset))
        if second:
            _ENTRY.pack_into(content, at + _SIZE, offset)

    def _value(self, owner: int, symbol: int) -> int:
        value = self._values[owner][symbol]
        if value is None:
            raise FormatError(f"symbol {symbol} of an object has no address")
        return value

    def stubs(self) -> bytes:
        """Return the content of the procedure linkage table."""
        make = self._linking.stub
        return b"".join([make(address, self._entries[name]) for name, address in self._stubs.items()])
