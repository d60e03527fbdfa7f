"""Resolves the symbols of all objects, computes their addresses, and builds the symbol table for debuggers and profilers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from compcache.errors import FormatError
from compcache.images.elf.parts import SHF_ALLOC, SHT_NOBITS, SHT_SYMTAB, SYMBOL, align_up
from compcache.images.writer.inputs import COMMON, MAX_ALIGNMENT, SHF_WRITE, SHN_ABS, STT_FILE, STT_SECTION, STT_TLS
from compcache.images.writer.layout import Output

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from compcache.images.elf.parts import Symbol
    from compcache.images.writer.inputs import Input

__all__ = ["ExportedSymbol", "Symbols", "symbol_sections"]

_SHT_STRTAB = 3
_VISIBILITY_DEFAULT = 0
_BSS = ".bss"
_BOUNDS = ("__start_", "__stop_")


class ExportedSymbol(NamedTuple):
    """The address of the exported symbol, its size in bytes, and the section that contains it."""

    address: int
    size: int
    section: Output


class Symbols:
    """The symbols of all objects. The pair (owner, number) refers to symbol `number` of object `owner`.

    `external` has, for each object, the names of the symbols that other images define, by symbol number. `undefined` has these symbols by
    name.
    """

    def __init__(self, inputs: Sequence[Input], outputs: dict[str, Output], export: str) -> None:
        """Raise `FormatError` if two objects define a symbol, none defines `export`, or a tentative definition is not supported."""
        self._inputs = inputs
        self._common: dict[tuple[int, int], int] = {}  # the offsets of tentative definitions in ``.bss``
        self._outputs = outputs
        # The section of the image that contains a section of an object, by its number in the object, and the offset there.
        self._homes: list[dict[int, tuple[Output, int]]] = [{} for _ in inputs]
        for home, piece in [(output, piece) for output in outputs.values() for piece in output.pieces]:
            self._homes[piece.owner][piece.section.number] = home, piece.offset
        defined: dict[str, tuple[int, int]] = {}
        undefined = []
        for owner, obj in enumerate(inputs):
            for number, symbol in enumerate(obj.symbols):
                _, name, _, info, _, section, _, _ = symbol
                if section == COMMON:
                    self._common[owner, number] = _reserve_common(symbol, outputs)
                if not name or not info >> 4:  # a local symbol
                    continue
                if not section:
                    undefined.append((owner, number, symbol))
                elif defined.setdefault(name, (owner, number)) != (owner, number):
                    raise FormatError(f"two objects define the symbol {name!r}")
        if export not in defined:
            raise FormatError(f"the objects do not define the exported symbol {export!r}")
        self._export = defined[export]
        self._bounds: list[tuple[int, int, str]] = []  # the references to ``__start_SECTION`` and ``__stop_SECTION``
        self._inner_references: list[tuple[int, int, tuple[int, int]]] = []  # each reference and its definition, in another object
        self.external: list[dict[int, str]] = [{} for _ in inputs]
        self.undefined: dict[str, Symbol] = {}
        for owner, number, symbol in undefined:
            self._add_undefined(owner, number, symbol, defined.get(symbol.name))

    def _add_undefined(self, owner: int, number: int, symbol: Symbol, definition: tuple[int, int] | None) -> None:
        """Record a reference to `definition` in another object; if it is None, to a bound of an output section or an outside symbol."""
        if definition is not None:
            self._inner_references.append((owner, number, definition))
        elif symbol.name.startswith(_BOUNDS) and symbol.name[2:].partition("_")[2] in self._outputs:  # __start_SECTION
            self._bounds.append((owner, number, symbol.name))
        elif symbol.other == _VISIBILITY_DEFAULT:
            self.external[owner][number] = symbol.name
            first_reference = self.undefined.setdefault(symbol.name, symbol)
            if first_reference.binding > symbol.binding:  # a strong reference replaces a weak one
                self.undefined[symbol.name] = symbol

    def addresses(self) -> list[list[int | None]]:
        """Return the addresses of the symbols of each object, by symbol number, or None for symbols without an address in the image."""
        addresses: list[list[int | None]] = []
        for homes, obj in zip(self._homes, self._inputs, strict=True):
            starts = {section: output.address + offset for section, (output, offset) in homes.items()}
            addresses.append([starts[section] + value if section in starts else None for _, _, _, _, _, section, value, _ in obj.symbols])
        for (owner, number), start in self._common.items():
            addresses[owner][number] = self._outputs[_BSS].address + start
        for owner, number, (definer, definition) in self._inner_references:
            addresses[owner][number] = addresses[definer][definition]
        for owner, number, name in self._bounds:
            bound, _, section = name[2:].partition("_")  # start or stop, and the section
            output = self._outputs[section]
            addresses[owner][number] = output.address + (output.size if bound == "stop" else 0)
        return addresses

    def section_of(self, owner: int, number: int, section: int) -> Output | None:
        """Return the image's section that contains a symbol, or None if that section is not in the image.

        `owner` is the number of the object, and `section` the number of the symbol's section in it.
        """
        home = self._homes[owner].get(section)
        if home is not None:
            return home[0]
        return self._outputs[_BSS] if (owner, number) in self._common else None

    def exported(self, addresses: Sequence[Sequence[int | None]]) -> ExportedSymbol:
        """Return the place of the exported symbol, given the result of `addresses`. Raise `FormatError` if it is not in the image."""
        owner, number = self._export
        symbol, address = self._inputs[owner].symbols[number], addresses[owner][number]
        section = self.section_of(owner, number, symbol.section)
        if address is None or section is None:
            raise FormatError(f"the exported symbol {symbol.name!r} is not in a section of the image")
        return ExportedSymbol(address, symbol.size, section)


def _reserve_common(symbol: Symbol, outputs: dict[str, Output]) -> int:
    """Reserve space for a tentative definition at the end of the section ``.bss``, which is created if needed. Return its offset there.

    Raise `FormatError` if the definition has an invalid or too large alignment, or is thread-local.
    """
    bss = outputs.setdefault(_BSS, Output(_BSS, SHT_NOBITS, SHF_ALLOC | SHF_WRITE))
    alignment = max(symbol.value, 1)
    if symbol.type == STT_TLS:
        raise FormatError(f"the common symbol {symbol.name!r} is thread-local, which only linkers support")
    if alignment & (alignment - 1) or alignment > MAX_ALIGNMENT:
        raise FormatError(
            f"the common symbol {symbol.name!r} has the alignment {alignment:#x}, which is not a power of two up to {MAX_ALIGNMENT:#x}"
        )
    start = align_up(bss.size, alignment)
    bss.alignment = max(bss.alignment, alignment)
    bss.size = start + symbol.size
    return start


def symbol_sections(
    inputs: Sequence[Input], symbols: Symbols, values: Sequence[Sequence[int | None]], export: str, requested: Collection[str],
    thread_start: int,
) -> tuple[Output, Output]:  # fmt: skip
    """Return the sections ``.symtab`` and ``.strtab`` with the symbols of all objects.

    Args:
        inputs: the objects.
        symbols: the symbols of the objects.
        values: the addresses of the symbols (`Symbols.addresses`).
        export: the name of the exported symbol. All other defined symbols become local.
        requested: the names that the image requests from other images.
        thread_start: the address of the template for thread-local variables.
    """
    pack = SYMBOL.pack
    local_rows, global_rows = [bytes(SYMBOL.size)], []
    written_names = set()
    string_start = 0
    for owner, obj in enumerate(inputs):
        row, strings = values[owner], obj.strings
        for number, (_, name, string, info, visibility, section, value, size) in enumerate(obj.symbols):
            kind = info & 0xF
            if section == 0 or kind == STT_SECTION:
                if info >> 4 and name in requested and name not in written_names:  # a symbol of another image
                    written_names.add(name)
                    global_rows.append(pack(string_start + string, info, 0, 0, 0, 0))
            elif kind == STT_FILE or section == SHN_ABS:
                local_rows.append(pack(string_start + string, kind, 0, SHN_ABS, value, size))
            elif not strings.startswith(b".L", string):  # without the labels of compilers
                address = row[number]
                output = symbols.section_of(owner, number, section)
                if address is None or output is None:
                    continue
                shown_address = address - thread_start if kind == STT_TLS else address
                if info >> 4 and name == export:
                    global_rows.append(pack(string_start + string, info, visibility, output.number, shown_address, size))
                else:
                    local_rows.append(pack(string_start + string, kind, 0, output.number, shown_address, size))
        string_start += len(strings)
    table = Output(".symtab", SHT_SYMTAB, 0, 8, SYMBOL.size, (len(local_rows) + len(global_rows)) * SYMBOL.size)
    table.info, table.content = len(local_rows), b"".join([*local_rows, *global_rows])
    table.link = text = Output(".strtab", _SHT_STRTAB, 0, 1, 0, string_start)
    text.content = b"".join([obj.strings for obj in inputs])
    return table, text
