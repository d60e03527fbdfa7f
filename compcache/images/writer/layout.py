"""Chooses the sections of an image, and the place of each part of the objects.

The image has a segment to read and run, which begins with the headers, and a segment to write. In the file, the second segment follows the
first segment directly, which keeps small modules small. In memory, the second segment begins one page later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.errors import FormatError
from compcache.images.elf.objects import TABLE_SECTION
from compcache.images.elf.parts import SHF_ALLOC, SHT_NOBITS, align_up
from compcache.images.writer.inputs import SHF_EXECINSTR, SHF_MERGE, SHF_STRINGS, SHF_TLS, SHF_WRITE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from compcache.images.writer.inputs import Input, InputSection

__all__ = ["Layout", "Output", "Piece", "lay_out", "merge_sections"]

#: The ranks of sections with other names: code, then data.
_OTHER_CODE, _OTHER_DATA = 100, 101
#: The order of sections in memory. A load reads the tables for the dynamic linker and the module's table, which is at the beginning of
#: ``.rodata``. Sections with other names are between the first and the last sections of a segment.
_RANKS = {
    name: rank
    for rank, names in (
        (0, (".gnu.hash", ".dynsym", ".dynstr", ".gnu.version", ".gnu.version_r", ".rela.dyn", ".rodata", ".plt", ".text")),
        (0, (".tdata", ".tbss", ".init_array", ".fini_array", ".data.rel.ro", ".dynamic", ".got", ".data")),
        (_OTHER_DATA + 1, (".gcc_except_table", ".eh_frame_hdr", ".eh_frame", ".bss")),
    )
    for rank, name in enumerate(names, rank)
}
_SORTED_SECTIONS = (".init_array", ".fini_array")


class Piece:
    """A section of an object, as a part of a section of the image. `content` is None if no relocation changes the section."""

    __slots__ = ("content", "offset", "owner", "section")

    def __init__(self, owner: int, section: InputSection, offset: int) -> None:
        self.owner = owner
        self.section = section
        self.offset = offset  # in the output section
        self.content: bytearray | None = None


class Output:
    """A section of the image. `content` is set if the section is created here rather than from pieces."""

    content: bytes | bytearray = b""
    address = offset = number = info = 0
    link: Output | None = None  # the section that the header refers to

    def __init__(self, name: str, kind: int, flags: int, alignment: int = 1, entry_size: int = 0, size: int = 0) -> None:
        self.name = name
        self.type = kind
        self.flags = flags
        self.alignment = alignment
        self.entry_size = entry_size
        self.size = size
        self.pieces: list[Piece] = []

    def add(self, owner: int, section: InputSection) -> None:
        """Append a section of the object with the number `owner`.

        Raise `FormatError` if the type or the flags of the section differ, or unwinding tables would need padding.
        """
        flags = _output_flags(section)
        if self.type != section.type:
            raise FormatError(f"the sections named {self.name} have different types: {self.type:#x} and {section.type:#x}")
        if (self.flags ^ flags) & ~(SHF_MERGE | SHF_STRINGS):
            raise FormatError(f"the sections named {self.name} have different flags: {self.flags:#x} and {flags:#x}")
        if (self.flags, self.entry_size) != (flags, section.entry_size):
            self.flags, self.entry_size = self.flags & ~(SHF_MERGE | SHF_STRINGS), 0
        start = align_up(self.size, section.alignment)
        if section.frames and start != self.size:
            raise FormatError(f"the unwinding tables in the sections {self.name} cannot be joined, because they would need padding")
        self.alignment = max(self.alignment, section.alignment)
        self.pieces.append(Piece(owner, section, start))
        self.size = start + section.size


class Layout:
    """The sections of an image in file order, and the bounds of its segments."""

    def __init__(self, outputs: list[Output]) -> None:
        self.outputs = outputs
        self.read_end = 0  # the offset in the file at which the first segment ends
        self.written_address = 0  # the address at which the second segment begins
        self.written_offset = 0  # the offset in the file at which the second segment begins
        self.end = 0  # the offset in the file at which the second segment ends
        self.end_of_memory = 0  # the address at which the second segment ends


def _output_flags(section: InputSection) -> int:
    """Return the flags of the image's section for a section of an object. Mergeable constants in mapped sections are not merged."""
    flags = section.flags & (SHF_WRITE | SHF_ALLOC | SHF_EXECINSTR | SHF_TLS)
    return flags if flags & SHF_ALLOC else flags | section.flags & (SHF_MERGE | SHF_STRINGS)


def merge_sections(inputs: Sequence[Input]) -> dict[str, Output]:
    """Return the sections of an image by name, made from the sections of all objects.

    Raise `FormatError` if sections of the same name do not fit together (`Output.add`), or a constructor's section has an invalid priority.
    """
    outputs: dict[str, Output] = {}
    parts = [(number, section) for number, obj in enumerate(inputs) for section in obj.sections]
    parts.sort(key=_is_after_table)
    for number, section in sorted(parts, key=_priority_key) if any(section.output in _SORTED_SECTIONS for _, section in parts) else parts:
        output = outputs.get(section.output)
        if output is None:
            output = outputs[section.output] = Output(
                section.output, section.type, _output_flags(section), section.alignment, section.entry_size
            )
        output.add(number, section)
    return outputs


def _is_after_table(part: tuple[int, InputSection]) -> bool:
    """Return whether a section comes after the module's table. As a sort key, this places the table first."""
    return part[1].name != TABLE_SECTION


def _priority_key(part: tuple[int, InputSection]) -> int:
    """Return the sort key of a table of constructors. The lowest priority comes first; tables without a priority come last.

    Raise `FormatError` if the suffix of the section's name is not a priority.
    """
    section = part[1]
    if section.output not in _SORTED_SECTIONS or section.name == section.output:
        return 1 << 16
    digits = section.name[len(section.output) + 1 :]
    if not digits.isdecimal() or int(digits) >= 1 << 16:
        raise FormatError(f"the name of the section {section.name} does not end with a priority below 65536")
    return int(digits)


def lay_out(outputs: Iterable[Output], start: int, page: int) -> Layout:
    """Assign addresses, file offsets and numbers to sections, in place, and return the layout.

    `start` is the file offset at which the headers end, and `page` the size of a page in bytes.
    """
    read: list[Output] = []
    written: list[Output] = []
    unmapped: list[Output] = []
    for output in outputs:
        if not output.flags & SHF_ALLOC:
            unmapped.append(output)
        else:
            (written if output.flags & SHF_WRITE else read).append(output)
    read.sort(key=_rank_of)
    written.sort(key=_rank_of)
    layout = Layout([*read, *written, *unmapped])
    position = start
    for output in read:
        position = output.address = output.offset = align_up(position, output.alignment)
        position += output.size
    layout.read_end = position
    largest = max([output.alignment for output in written], default=1)
    position = layout.written_offset = align_up(position, largest)
    shift = align_up(position, page)
    layout.written_address = layout.end_of_memory = position + shift
    for output in written:
        position = align_up(position, output.alignment)
        output.address, output.offset = position + shift, position
        if output.flags & SHF_TLS and output.type == SHT_NOBITS:
            continue  # part of the template for threads, not of the segment
        position += output.size
        layout.end_of_memory = position + shift
        if output.type != SHT_NOBITS:
            layout.end = position
    layout.end = max(layout.end, layout.written_offset)
    for number, output in enumerate(layout.outputs, 1):
        output.number = number
    return layout


def _rank_of(output: Output) -> int:
    """Return the sort key of a section in its segment."""
    return _RANKS.get(output.name, _OTHER_CODE if output.flags & SHF_EXECINSTR else _OTHER_DATA)
