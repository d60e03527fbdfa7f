"""Applies the relocations of the objects.

Before addresses are known, `scan` finds the table entries that the relocations need, and counts the relocations for the dynamic linker.
`Relocator` then fills in addresses, and lists the relocations for the dynamic linker.
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

    #: The key of a table entry: the name of a symbol of another image, or (object number, symbol number).
    Key = str | tuple[int, int]

__all__ = ["DynamicRelocation", "Relocator", "Tables", "scan"]

_SIZE = 8
_ENTRY = Struct("<Q")
_PAGE = -0x1000  # masks the address of a page
#: The entry for this module's own thread-local variables.
_MODULE = (-1, 0)


class DynamicRelocation(NamedTuple):
    """A relocation for the dynamic linker. `name` is empty if the relocation refers to this image. `place` is an address."""

    name: str
    place: int
    type: int
    addend: int


class Tables:
    """The tables that the image needs: numbered entries, and the number of relocations for the dynamic linker."""

    def __init__(self, imports: Collection[str]) -> None:
        self._imports = imports
        self.entries: dict[Key, int] = {}  # of the global offset table
        self.pairs: dict[Key, int] = {}  # pairs of entries for thread-local variables, behind the other entries
        self.stubs: dict[str, int] = {}  # of the procedure linkage table
        self.names: dict[str, None] = {}  # symbols of other images, as requested from the dynamic linker
        self.relocations = 0

    def add_address(self, name: str | None) -> None:
        """Count the relocation of an address. `name` is a symbol of another image; None for an address in this image."""
        if name is None:
            self.relocations += 1
        elif name not in self._imports:
            self.names[name] = None
            self.relocations += 1

    def add_entry(self, key: Key) -> None:
        """Add an entry for a symbol to the global offset table, unless it has one."""
        if key not in self.entries:
            self.entries[key] = len(self.entries)
            self.add_address(key if isinstance(key, str) else None)

    def add_stub(self, name: str) -> None:
        """Add a stub, code that jumps to a symbol of another image, unless the symbol has a stub."""
        self.stubs.setdefault(name, len(self.stubs))
        self.add_entry(name)

    def add_pair(self, key: Key, relocations: int) -> None:
        """Add a pair of entries for a thread-local variable, unless it has one.

        A variable of another image takes `relocations` relocations. A variable of this image takes one, because its offset is known.
        """
        if key not in self.pairs:
            self.pairs[key] = len(self.pairs)
            self.relocations += relocations if isinstance(key, str) else 1
            if isinstance(key, str):
                self.names[key] = None

    def size(self) -> int:
        """Return the size of the global offset table, in bytes."""
        return _SIZE * (len(self.entries) + 2 * len(self.pairs))


def scan(inputs: Sequence[Input], external: Sequence[Mapping[int, str]], imports: Collection[str]) -> Tables:
    """Return the tables that the relocations of mapped sections need.

    `external` has the symbols of other images by object, and the runtime fills in the addresses of the symbols in `imports`.

    Raise `FormatError` if the type of a relocation is unknown, or a relocation stores an address in a read-only section.
    """
    tables = Tables(imports)
    for owner, obj in enumerate(inputs):
        for section in obj.sections:
            if section.relocations and section.flags & SHF_ALLOC:
                unknown = {kind for _, kind, _, _ in section.relocations}.difference(obj.linking.fixups)
                if unknown:
                    raise FormatError(f"the section {section.name} has relocations of the type {min(unknown)}, which only linkers support")
                _scan_section(tables, obj, section, owner, external[owner])
    return tables


def _scan_section(tables: Tables, obj: Input, section: InputSection, owner: int, external: Mapping[int, str]) -> None:
    """Reserve the table entries and stubs that a section needs. Raise `FormatError` if the section needs a linker."""
    fixups = obj.linking.fixups
    for offset, kind, symbol, addend in section.relocations:
        fixup = fixups[kind]
        if fixup.to == SYMBOL:
            if fixup.form == ADDRESS:
                if not section.flags & SHF_WRITE:
                    raise FormatError(f"the read-only section {section.name} contains an address, which only linkers support")
                tables.add_address(external.get(symbol))
        elif fixup.to == CALL:
            if symbol in external:
                tables.add_stub(external[symbol])
        elif fixup.to == TABLE:
            if symbol in external or not (fixup.relaxes and obj.linking.can_relax(section.content, offset, addend)):
                tables.add_entry(external.get(symbol) or (owner, symbol))
        elif fixup.to in (TLS_PAIR, TLS_MODULE):
            tables.add_pair(_MODULE if fixup.to == TLS_MODULE else external.get(symbol) or (owner, symbol), len(obj.linking.tls_pair))


class Relocator:
    """Applies relocations. `dynamic` has the relocations for the dynamic linker; `places` has the places of imports.

    Args:
        linking: the known relocations of the architecture.
        tables: the tables of `scan`.
        external: the symbols of other images, by object.
        values: the addresses of symbols, by object; None for symbols without an address in the image.
        imports: the symbols whose addresses the runtime fills in.
        table: the address of the global offset table.
        stubs: the address of the procedure linkage table.
        thread_start: the address of the template for thread-local variables.
    """

    def __init__(
        self, linking: Linking, tables: Tables, external: Sequence[Mapping[int, str]], values: Sequence[Sequence[int | None]],
        imports: Collection[str], table: int, stubs: int, thread_start: int,
    ) -> None:  # fmt: skip
        self._linking = linking
        self._tables = tables
        self._external = external
        self._values = values
        self._imports = imports
        self._thread_start = thread_start
        self._entries = {key: table + _SIZE * number for key, number in tables.entries.items()}
        pairs = table + _SIZE * len(tables.entries)
        self._pairs = {key: pairs + 2 * _SIZE * number for key, number in tables.pairs.items()}
        self._stubs = {name: stubs + linking.stub_size * number for name, number in tables.stubs.items()}
        self.dynamic: list[DynamicRelocation] = []
        self.places: dict[str, list[tuple[int, int]]] = {}  # by import: addresses, and the numbers to add

    def relocate(self, piece: Piece, start: int, content: bytearray) -> None:
        """Apply the relocations of a part of a mapped section to `content`, in place. `start` is the address of the part.

        Raises:
            FormatError: a symbol has no address for this kind of reference.
            ValueError, struct.error: a distance is too large for its field.
        """
        owner = piece.owner
        fixups, values = self._linking.fixups, self._values[owner]
        for offset, kind, symbol, addend in piece.section.relocations:
            target, form, store, relaxes = fixups[kind]
            value = values[symbol]
            if value is None or target > CALL or form == ADDRESS:
                if relaxes and value is not None and self._linking.can_relax(memoryview(content), offset, addend):
                    self._linking.relax(content, offset, value + addend - start - offset)
                    continue
                value = self._target_address(owner, start + offset, fixups[kind], symbol, addend)
                if value is None:
                    continue
            if form == DISTANCE:
                store(content, offset, value + addend - start - offset)
            elif form == LOW:
                store(content, offset, value + addend)
            else:
                store(content, offset, (value + addend & _PAGE) - (start + offset & _PAGE))

    def _target_address(self, owner: int, location: int, fixup: Fixup, symbol: int, addend: int) -> int | None:
        """Return the address to which a relocation of the object `owner` refers, or None if nothing is stored at `location` now.

        A relocation that stores an address is added to `dynamic` or `places` instead.

        Raise `FormatError` if the image does not define the symbol, or only linkers support the relocation.
        """
        name = self._external[owner].get(symbol)
        key = name or (owner, symbol)
        if fixup.to == SYMBOL and fixup.form == ADDRESS:
            if name is None:
                self.dynamic.append(DynamicRelocation("", location, self._linking.relative, self._address_of(owner, symbol) + addend))
            else:
                self._add_reference(name, location, self._linking.absolute, addend)
            return None
        if fixup.to == TLS_OFFSET:
            return self._address_of(owner, symbol) - self._thread_start
        if fixup.to == NOTHING:
            return None
        if addend and fixup.form != DISTANCE:
            raise FormatError(f"a relocation refers to a table entry with the addend {addend}, which only linkers support")
        if fixup.to == CALL and name is not None:
            return self._stubs[name]
        if fixup.to == TABLE:
            return self._entries[key]
        if fixup.to in (TLS_PAIR, TLS_MODULE):
            return self._pairs[_MODULE if fixup.to == TLS_MODULE else key]
        described = f"symbol {symbol} of an object" if name is None else f"the symbol {name!r}"
        raise FormatError(f"the code refers by a distance to {described}, which this image does not define")

    def relocate_debug(self, piece: Piece, content: bytearray) -> None:
        """Apply the relocations of a part of an unmapped section to `content`, in place. Symbols of other images are 0.

        Raise `FormatError` if the type of a relocation is not known for debug sections.
        """
        values, linking = self._values[piece.owner], self._linking
        for offset, kind, symbol, addend in piece.section.relocations:
            store = linking.debug.get(kind)
            if store is None:
                raise FormatError(
                    f"the section {piece.section.name} has relocations of the type {kind}, which only linkers support in debug sections"
                )
            value = values[symbol]
            if kind in linking.debug_tls and value is not None:
                value -= self._thread_start
            store(content, offset, 0 if value is None else value + addend)

    def _add_reference(self, name: str, location: int, kind: int, addend: int) -> None:
        """Record a location that needs the address of a symbol outside the image, from another module or the dynamic linker."""
        if name in self._imports:
            self.places.setdefault(name, []).append((location, addend))
        else:
            self.dynamic.append(DynamicRelocation(name, location, kind, addend))

    def table(self) -> bytes:
        """Return the global offset table, and add its relocations to `dynamic` and `places`. See `_address_of` for the exception."""
        for key, address in self._entries.items():
            if isinstance(key, str):
                self._add_reference(key, address, self._linking.in_table, 0)
            else:
                self.dynamic.append(DynamicRelocation("", address, self._linking.relative, self._address_of(*key)))
        content = bytearray(self._tables.size())
        for key, address in self._pairs.items():
            offset = len(self._entries) * _SIZE + 2 * _SIZE * self._tables.pairs[key]
            self._add_pair(key, address, content, offset)
        return bytes(content)

    def _add_pair(self, key: Key, address: int, content: bytearray, position: int) -> None:
        """Add the relocations of the two words by which code finds a thread-local variable, at an address and a position in `content`.

        The second word of a variable of this image, its distance from the start of the thread's block, is written into `content`.
        An architecture with one relocation for both words has the distance in the relocation instead.

        Raise `FormatError` if the image does not contain the variable's section.
        """
        first, *second = self._linking.tls_pair
        if isinstance(key, str):
            self.dynamic.append(DynamicRelocation(key, address, first, 0))
            self.dynamic += [DynamicRelocation(key, address + _SIZE, kind, 0) for kind in second]
            return
        distance = 0 if key == _MODULE else self._address_of(*key) - self._thread_start
        self.dynamic.append(DynamicRelocation("", address, first, 0 if second else distance))
        if second:
            _ENTRY.pack_into(content, position + _SIZE, distance)

    def _address_of(self, owner: int, symbol: int) -> int:
        """Return the address of an object's symbol in this image. Raise `FormatError` if the image does not contain its section."""
        value = self._values[owner][symbol]
        if value is None:
            raise FormatError(f"symbol {symbol} of object {owner} has no address in this image")
        return value

    def stubs(self) -> bytes:
        """Return the content of the procedure linkage table."""
        make = self._linking.stub
        return b"".join([make(address, self._entries[name]) for name, address in self._stubs.items()])
