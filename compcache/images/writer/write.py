"""Writes a shared object as a linker would, from objects with only supported parts."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from compcache.errors import FormatError
from compcache.images.elf.objects import FILE_HEADER, IDENT, SECTION_HEADER
from compcache.images.elf.parts import ET_DYN, SECTION, SHF_ALLOC, SHT_NOBITS, SHT_PROGBITS, STB_WEAK, align_up
from compcache.images.writer.dynamic import Dynamic, NeededSymbol
from compcache.images.writer.frames import index_of_frames, index_size
from compcache.images.writer.inputs import SHF_EXECINSTR, SHF_WRITE, STT_TLS, read_input, with_table
from compcache.images.writer.layout import Output, lay_out, merge_sections
from compcache.images.writer.relocations import Relocator, scan
from compcache.images.writer.symbols import Symbols, symbol_sections
from compcache.interrupts import as_format_error

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from compcache.images.elf.objects import DistanceTable
    from compcache.images.elf.parts import Symbol
    from compcache.images.writer.inputs import Input
    from compcache.images.writer.layout import Layout
    from compcache.images.writer.relocations import Tables

__all__ = ["Provider", "WrittenImage", "write_shared"]

_SEGMENT = Struct("<IIQQQQQQ")
_PT_LOAD, _PT_DYNAMIC, _PT_TLS, _PT_GNU_EH_FRAME, _PT_GNU_STACK = 1, 2, 7, 0x6474E550, 0x6474E551
_PF_X, _PF_W, _PF_R = 1, 2, 4
_SHT_STRTAB = 3
_PLACE = Struct("<qq")


class Provider(NamedTuple):
    """The soname of the shared library that defines a symbol, and the symbol's version; empty if the symbol has no version."""

    library: str
    version: str


class WrittenImage(NamedTuple):
    """A shared object, the places of its imports by name (`elf.patching.extract_places`), and the symbols of other images that it needs."""

    image: bytes
    places: dict[str, bytes]
    needed: list[NeededSymbol]


def write_shared(
    objects: Sequence[bytes],
    *,
    export: str,
    optional: Collection[str],
    imports: Collection[str],
    providers: Mapping[str, Provider],
    run_paths: Sequence[str] = (),
    table: DistanceTable | None = None,
) -> WrittenImage:
    """Write a shared object from relocatable objects.

    Args:
        objects: the objects from LLVM.
        export: the one symbol that the image exports.
        optional: the symbols of other images that may be missing, in addition to weak references.
        imports: the symbols whose addresses are filled in when code is loaded. The dynamic linker does not see these symbols.
        providers: the libraries that define symbols, by symbol.
        run_paths: further directories with these libraries.
        table: a constant to add to the first object, or None.

    Raise `FormatError` if an object is malformed, or has parts that the writer does not support. A linker may support them.
    """
    with as_format_error("the shared object cannot be written, because an object is damaged or too large"):
        inputs = [read_input(data) for data in objects]
        if table is not None:
            inputs[0] = with_table(inputs[0], table)
        return _write_image(inputs, export, optional, imports, providers, run_paths)


def _write_image(
    inputs: Sequence[Input], export: str, optional: Collection[str], imports: Collection[str],
    providers: Mapping[str, Provider], run_paths: Sequence[str],
) -> WrittenImage:  # fmt: skip
    """Return the shared object that contains these objects. Raise `FormatError` if only a linker can make it."""
    linking = inputs[0].linking
    _require_mergeable(inputs)
    outputs = merge_sections(inputs)
    symbols = Symbols(inputs, outputs, export)
    tables = scan(inputs, symbols.external, imports)
    needed = [_needed_symbol(symbols.undefined[name], optional, providers) for name in tables.names]
    dynamic = Dynamic(needed, export, run_paths, tables.relocations, outputs)
    frames = sum([len(section.frames) for obj in inputs for section in obj.sections])
    for output in (*dynamic.outputs(), *_table_sections(tables, linking.stub_size, frames)):
        outputs[output.name] = output
    template = _align_thread_template(outputs)
    segments = 4 + (frames > 0) + (template is not None)
    layout = lay_out(outputs.values(), FILE_HEADER.size + segments * _SEGMENT.size, linking.page)
    addresses = symbols.addresses()
    relocator = Relocator(
        linking, tables, symbols.external, addresses, imports, _section_address(outputs, ".got"), _section_address(outputs, ".plt"),
        template[0].address if template else 0,
    )  # fmt: skip
    _relocate_pieces(layout, relocator)
    if tables.size():
        outputs[".got"].content = relocator.table()
    if tables.stubs:
        outputs[".plt"].content = relocator.stubs()
    if frames:
        _index_frames(outputs[".eh_frame_hdr"], outputs[".eh_frame"])
    exported = symbols.exported(addresses)
    dynamic.fill(exported, relocator.dynamic, linking.relative)
    tail = symbol_sections(inputs, symbols, addresses, export, frozenset(tables.names), template[0].address if template else 0)
    image = _assemble(inputs[0].machine, layout, tail, _program_headers(layout, outputs, template, linking.page))
    return WrittenImage(image, _encode_places(relocator.places, exported.address), needed)


def _require_mergeable(inputs: Sequence[Input]) -> None:
    """Raise `FormatError` if the objects are for different machines, or only a linker can merge their properties."""
    if any(obj.machine != inputs[0].machine for obj in inputs):
        raise FormatError("the objects are for different machines")
    if all(obj.has_properties for obj in inputs):
        raise FormatError("all objects have the section .note.gnu.property, which only linkers can merge")


def _encode_places(places: Mapping[str, Sequence[tuple[int, int]]], table_address: int) -> dict[str, bytes]:
    """Return the encoded locations of each import by symbol, as distances from the exported table, with their addends."""
    return {
        name: b"".join([_PLACE.pack(address - table_address, addend) for address, addend in references])
        for name, references in places.items()
    }


def _needed_symbol(symbol: Symbol, optional: Collection[str], providers: Mapping[str, Provider]) -> NeededSymbol:
    """Return the request for a symbol of another image.

    Symbols in `optional` become weak, except thread-local symbols, for which null has no meaning.

    Raise `FormatError` if the name contains a version.
    """
    name = symbol.name
    if "@" in name:
        raise FormatError(f"the undefined symbol {name!r} has a version in its name, which only linkers support")
    is_weak = symbol.binding == STB_WEAK or (name in optional and symbol.type != STT_TLS)
    return NeededSymbol(name, is_weak, symbol.type, *providers.get(name, ("", "")))


def _table_sections(tables: Tables, stub_size: int, frames: int) -> Iterator[Output]:
    """Yield the sections for table entries, stubs and the index of unwinding tables. `frames` is the number of unwinding entries."""
    if tables.size():
        yield Output(".got", SHT_PROGBITS, SHF_ALLOC | SHF_WRITE, 8, 8, tables.size())
    if tables.stubs:
        yield Output(".plt", SHT_PROGBITS, SHF_ALLOC | SHF_EXECINSTR, 16, stub_size, len(tables.stubs) * stub_size)
    if frames:
        yield Output(".eh_frame_hdr", SHT_PROGBITS, SHF_ALLOC, 4, 0, index_size(frames))


def _align_thread_template(outputs: Mapping[str, Output]) -> list[Output]:
    """Set the alignment of the first section of thread-local variables to the largest alignment of these sections. Return the sections."""
    sections = [outputs[name] for name in (".tdata", ".tbss") if name in outputs]
    if sections:
        sections[0].alignment = max([output.alignment for output in sections])
    return sections


def _section_address(outputs: Mapping[str, Output], name: str) -> int:
    """Return the address of a section, or 0 if the image does not have it."""
    return outputs[name].address if name in outputs else 0


def _relocate_pieces(layout: Layout, relocator: Relocator) -> None:
    """Write the final addresses into all sections that contain relocations or unwinding tables.

    Raise `FormatError` if a relocation is not supported, or `ValueError` or `struct.error` if a distance is too large.
    """
    for output in layout.outputs:
        is_mapped = output.flags & SHF_ALLOC
        for piece in output.pieces:
            section = piece.section
            if section.relocations or section.frames:
                content = piece.content = bytearray(section.content)
                if is_mapped:
                    relocator.relocate(piece, output.address + piece.offset, content)
                else:
                    relocator.relocate_debug(piece, content)


def _index_frames(index: Output, tables: Output) -> None:
    """Fill the sorted index with which an unwinder finds the frame of an address."""
    entries = [
        (piece.content, tables.address + piece.offset, frame)
        for piece in tables.pieces
        for frame in piece.section.frames
        if piece.content is not None
    ]
    index.content = index_of_frames(index.address, tables.address, entries)


def _program_headers(layout: Layout, outputs: Mapping[str, Output], template: Sequence[Output], page: int) -> bytes:
    """Return the program headers.

    The dynamic section is read-only. Since version 2.35, glibc stores addresses in a writable one: a page of private memory per image.
    """
    size, end = layout.written_address - layout.written_offset, layout.read_end
    table, index = outputs[".dynamic"], outputs.get(".eh_frame_hdr")
    in_file, in_memory = layout.end - layout.written_offset, layout.end_of_memory - layout.written_address
    rows = [
        (_PT_LOAD, _PF_R | _PF_X, 0, 0, end, end, page),
        (_PT_LOAD, _PF_R | _PF_W, layout.written_offset, layout.written_offset + size, in_file, in_memory, page),
        (_PT_DYNAMIC, _PF_R, table.offset, table.address, table.size, table.size, 8),
        (_PT_GNU_STACK, _PF_R | _PF_W, 0, 0, 0, 0, 16),
    ]
    if index is not None:
        rows.append((_PT_GNU_EH_FRAME, _PF_R, index.offset, index.address, index.size, index.size, 4))
    if template:
        first, last = template[0], template[-1]
        content = sum([output.size for output in template if output.type != SHT_NOBITS])
        rows.append((_PT_TLS, _PF_R, first.offset, first.address, content, last.address + last.size - first.address, first.alignment))
    return b"".join([_SEGMENT.pack(kind, flags, offset, address, address, *fields) for kind, flags, offset, address, *fields in rows])


def _assemble(machine: int, layout: Layout, tail: Sequence[Output], segments: bytes) -> bytes:
    """Return the file: headers, mapped sections, unmapped sections, section headers. Unchanged parts of objects are copied only here."""
    parts: list[bytes | bytearray | memoryview] = [b"", segments]
    position = FILE_HEADER.size + len(segments)
    rows = [bytes(SECTION.size)]
    strings = Output(".shstrtab", _SHT_STRTAB, 0)
    outputs = [*layout.outputs, *tail, strings]
    titles = [output.name.encode("utf-8", "surrogateescape") for output in outputs]
    strings.content = b"\0%b\0" % b"\0".join(titles)
    strings.size, name = len(strings.content), 1
    for number, output in enumerate(tail, len(layout.outputs) + 1):
        output.number = number
    for output, title in zip(outputs, titles, strict=True):
        if output.flags & SHF_ALLOC:
            start = output.offset
        else:
            start = output.offset = align_up(position, output.alignment)
        rows.append(SECTION_HEADER.pack(
            name, output.type, output.flags, output.address, start, output.size, output.link.number if output.link else 0,
            output.info, output.alignment, output.entry_size,
        ))  # fmt: skip
        name += len(title) + 1
        if output.type != SHT_NOBITS:
            parts += bytes(start - position), output.content
            piece_end = 0
            for piece in output.pieces:
                section = piece.section
                parts += bytes(piece.offset - piece_end), piece.content or section.content
                piece_end = piece.offset + section.size
            position = start + output.size
    parts.append(bytes(-position % 8))
    parts[0] = FILE_HEADER.pack(
        IDENT, ET_DYN, machine, 1, 0, FILE_HEADER.size, align_up(position, 8), 0, FILE_HEADER.size, _SEGMENT.size,
        len(segments) // _SEGMENT.size, SECTION.size, len(rows), len(rows) - 1,
    )  # fmt: skip
    return b"".join([*parts, *rows])
