"""Finds the processor features that the instructions of machine code use (miss path).

Compilers rarely use all features for which they compile, AVX-512 for example. The code reader of an architecture (`compcache.arch`) finds
the features that the code uses. If there is no reader, or if it does not know an instruction, the code requires all features for which it
was compiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.errors import FormatError
from compcache.images.elf.reading import architecture_of, code_sections

if TYPE_CHECKING:
    from compcache.arch.architecture import CodeReader

__all__ = ["used_by_functions"]


def used_by_functions(obj: bytes) -> dict[str, frozenset[str]] | None:
    """Return the features that each function in a relocatable object uses, by their LLVM names, or None if they are unknown.

    They are unknown if there is no code reader for the architecture, if an instruction or its feature is unknown, or if code sections
    contain bytes other than functions and padding.
    """
    try:
        reader = _reader_of(obj)
        sections = code_sections(obj) if reader is not None else ()
    except FormatError:
        return None
    if reader is None:
        return None
    features: dict[str, frozenset[str]] = {}
    for section in sections:
        position = 0
        for start, end, name in section.functions:
            used_features = reader.used_features(section.code[start:end]) if start < end else None
            if used_features is None or not reader.is_padding(section.code[position:start]):
                return None
            features[name] = features.get(name, frozenset()) | used_features
            position = max(position, end)
        if not reader.is_padding(section.code[position:]):
            return None
    return features


def _reader_of(obj: bytes) -> CodeReader | None:
    """Return the code reader for the architecture of an object, or None if there is no reader."""
    return architecture_of(obj).code_reader()
