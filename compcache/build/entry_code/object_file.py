"""Chooses the entry points that are assembled from patterns, and makes their relocatable object, with unwinding tables.

Layout: System V gABI, chapter 4. Frames: DWARF 5, 6.4, as the Linux Standard Base changes them (`.eh_frame`).
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from compcache.arch.known import architecture
from compcache.build.entry_code.aarch64 import ArmAssembler
from compcache.build.entry_code.patterns import generate_code
from compcache.build.entry_code.x86_64 import X86Assembler
from compcache.build.entry_points import symbols_of_entries
from compcache.formats.host import platform_name
from compcache.images.elf.objects import SHF_INFO_LINK, elf_object
from compcache.images.elf.parts import RELOCATION, SHF_ALLOC, SHT_PROGBITS, SHT_RELA, SHT_SYMTAB, STB_GLOBAL, SYMBOL, StringTable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from compcache.build.entry_code.assembler import Assembler, Code
    from compcache.build.entry_points import EntryPoint

__all__ = ["entry_object"]

_ASSEMBLERS = {assembler.elf_machine: assembler for assembler in (X86Assembler, ArmAssembler)}
_LENGTH = Struct("<I")
_SHF_EXECINSTR = 4
_STT_FUNC, _STT_SECTION, _STV_HIDDEN = 2, 3, 2
_TEXT, _FRAMES, _SYMBOLS, _STRINGS = 1, 3, 6, 7  # the numbers of sections
_ALIGNMENT = 16
_NOP = {62: b"\x90", 183: b"\x1f\x20\x03\xd5"}
#: The encoding of references to code in frames: DW_EH_PE_pcrel | DW_EH_PE_sdata4.
_POINTERS = 0x1B
_ADVANCE1, _ADVANCE2, _LONGEST1 = 2, 3, 0x100


def _assemble_object(assembler: type[Assembler], functions: Mapping[str, Code]) -> bytes:
    """Return an object that defines these functions as hidden symbols. `functions` has the code by symbol."""
    text, starts = _joined_code(_NOP[assembler.elf_machine], functions)
    strings = StringTable()
    symbols = [SYMBOL.pack(0, 0, 0, 0, 0, 0), SYMBOL.pack(0, _STT_SECTION, 0, _TEXT, 0, 0)]
    numbers: dict[str, int] = {}
    for name, start in starts.items():
        numbers[name] = len(symbols)
        size = len(functions[name].code)
        symbols.append(SYMBOL.pack(strings.add(name), STB_GLOBAL << 4 | _STT_FUNC, _STV_HIDDEN, _TEXT, start, size))
    relocations = []
    for name, function in functions.items():
        for offset, relocation_type, symbol, addend in function.relocations:
            if symbol not in numbers:
                numbers[symbol] = len(symbols)
                symbols.append(SYMBOL.pack(strings.add(symbol), STB_GLOBAL << 4, 0, 0, 0, 0))
            relocations.append(RELOCATION.pack(starts[name] + offset, relocation_type, numbers[symbol], addend))
    frames, code_references = _unwinding_frames(assembler, functions)
    frame_relocations = [
        RELOCATION.pack(offset, assembler.distance, 1, start) for offset, start in zip(code_references, starts.values(), strict=True)
    ]  # fmt: skip
    sections = (
        (".text", SHT_PROGBITS, SHF_ALLOC | _SHF_EXECINSTR, text, 0, 0, _ALIGNMENT, 0),
        (".rela.text", SHT_RELA, SHF_INFO_LINK, b"".join(relocations), _SYMBOLS, _TEXT, 8, RELOCATION.size),
        (".eh_frame", assembler.unwind_type, SHF_ALLOC, frames, 0, 0, 8, 0),
        (".rela.eh_frame", SHT_RELA, SHF_INFO_LINK, b"".join(frame_relocations), _SYMBOLS, _FRAMES, 8, RELOCATION.size),
        (".note.GNU-stack", SHT_PROGBITS, 0, b"", 0, 0, 1, 0),
        (".symtab", SHT_SYMTAB, 0, b"".join(symbols), _STRINGS, 2, 8, SYMBOL.size),
    )
    return elf_object(assembler.elf_machine, sections, strings)


def _joined_code(nop: bytes, functions: Mapping[str, Code]) -> tuple[bytes, dict[str, int]]:
    """Return the code of all functions, aligned with `nop` instructions, and the offsets of the functions in it."""
    text, starts = bytearray(), dict[str, int]()
    for name, function in functions.items():
        text += nop * (-len(text) % _ALIGNMENT // len(nop))
        starts[name] = len(text)
        text += function.code
    return bytes(text), starts


def _unwinding_frames(assembler: type[Assembler], functions: Mapping[str, Code]) -> tuple[bytes, list[int]]:
    """Return the unwinding frames of functions, and the offsets of their references to code."""
    # Version, augmentation, factors for code and for data (-8), the return address's register, the encoding of references to code.
    content = bytearray(
        _padded_record(bytes(4) + b"\x01zR\0\x01\x78" + bytes((assembler.return_register, 1, _POINTERS)) + assembler.first_rules)
    )
    code_references = []
    for function in functions.values():
        rules, rule_offset = bytearray(), 0
        for offset, rule in function.frame_rules:
            rules += _advance_rule(offset - rule_offset) + rule
            rule_offset = offset
        code_references.append(len(content) + 8)
        back = _LENGTH.pack(len(content) + 4)
        content += _padded_record(back + bytes(4) + _LENGTH.pack(len(function.code)) + b"\0" + rules)
    return bytes(content), code_references


def _advance_rule(distance: int) -> bytes:
    """Return the unwinding instruction that moves the code position forward by `distance` bytes (DWARF 5, 6.4.2.1)."""
    if distance < _LONGEST1:
        return bytes((_ADVANCE1, distance))
    return bytes((_ADVANCE2,)) + distance.to_bytes(2, "little")


def _padded_record(content: bytes) -> bytes:
    """Return a record of `.eh_frame`: its length, and its content, padded with zeros (DW_CFA_nop) to a multiple of eight bytes."""
    content += bytes(-(len(content) + _LENGTH.size) % 8)
    return _LENGTH.pack(len(content)) + content


def entry_object(entries: Sequence[EntryPoint], elf_machine: int | None = None) -> tuple[bytes, tuple[EntryPoint, ...]]:
    """Assemble entry points. Return the object, or b"" if none can be assembled, and the entry points that LLVM must compile.

    LLVM compiles entry points for other calling conventions or with large frames (`Assembler.frame_limit`), and all entry points on
    architectures other than x86-64 and AArch64. `elf_machine` is the ELF number of the architecture; None stands for this process.
    """
    assembler = _ASSEMBLERS.get(architecture(platform_name()).elf_machine if elf_machine is None else elf_machine)
    if assembler is None:
        return b"", tuple(entries)
    codes = {pair: generate_code(pair[1], assembler) for pair in zip(symbols_of_entries(entries), entries, strict=True)}
    assembled = {symbol: code for (symbol, _), code in codes.items() if code is not None}
    uncovered = tuple([entry for (_, entry), code in codes.items() if code is None])
    return _assemble_object(assembler, assembled) if assembled else b"", uncovered
