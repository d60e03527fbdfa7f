"""Finds the processor features that machine code uses, instruction by instruction (miss path).

A compiler that may use AVX-512 rarely does. The reader of an architecture's machine code (`compcache.arch`) finds the features that were
used. Without a reader, or if an instruction cannot be decoded, there is no answer, and the code requires all features for which it was
compiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.errors import FormatError
from compcache.images.elf.reading import architecture_of, code_sections

if TYPE_CHECKING:
    from compcache.arch.architecture import CodeReader

__all__ = ["used_by_functions"]


def used_by_functions(obj: bytes) -> dict[str, frozenset[str]] | None:
    """Return the features that each function in a relocatable object uses, by LLVM's names.

    None if this cannot be determined: there is no disassembler for the architecture, a byte cannot be decoded, an instruction's feature is
    unknown, or sections of code hold anything but functions and padding.
    """
    try:
        reader = _reader_of(obj)
        sections = code_sections(obj) if reader is not None else ()
    except FormatError:
        return None
    if reader is None:
        return None
    found: dict[str, frozenset[str]] = {}
    for section in sections:
        at = 0
        for start, end, name in section.functions:
            used = reader.used(section.code[start:end]) if start < end else None
            if used is None or not reader.is_padding(section.code[at:start]):
                return None
            found[name] = found.get(name, frozenset()) | used
            at = max(at, end)
        if not reader.is_padding(section.code[at:]):
            return None
    return found


def _reader_of(obj: bytes) -> CodeReader | None:
    return architecture_of(obj).code_reader()
