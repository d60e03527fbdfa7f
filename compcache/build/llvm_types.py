"""Reads LLVM types from text: their sizes and alignments, and the pieces in which values are passed."""

from __future__ import annotations

import re
from typing import NamedTuple

from compcache.build.ir_text import lines_from, split_at
from compcache.images.elf.parts import align_up

__all__ = ["Type", "Types", "named_types", "split_type", "split_words"]

_NAME = r'(?:"[^"]*"|[-$._A-Za-z0-9]+)'
_NAMED_TYPE = re.compile(rf"(%{_NAME}) = type (.*)")
_LAYOUT = re.compile(r'^target datalayout = "([^"]*)"', re.MULTILINE)
_NOT_WORDS = re.compile(r"[^A-Za-z0-9._ ]")
_FLOATS = {"half": ("f16", 2), "bfloat": ("bf16", 2), "float": ("f32", 4), "double": ("f64", 8), "fp128": ("f128", 16),
           "x86_fp80": ("f80", 16), "ppc_fp128": ("ppc_f128", 16)}  # fmt: skip
_MOST_PIECES = 256
_BYTE, _WORD, _WIDE = 8, 8, 16  # the bits of a byte, and the bytes of a word and of the widest aligned integer
_WORD_OF_TYPE = re.compile(rf"%{_NAME}|[a-z][A-Za-z0-9_]*")
_COUNT = re.compile(r"(vscale x )?(\d+) x ")
_BRACKETS = re.compile(r'[(\[{<"]')


class Type(NamedTuple):
    """An LLVM type: its size and alignment in bytes, and the pieces in which a value is passed. Size -1: unknown."""

    size: int
    align: int
    pieces: tuple[str, ...]
    is_aggregate: bool = False


_VOID = Type(0, 1, ())


class Types:
    """LLVM types of one module, read from text. Methods raise `RecursionError` for types that are nested too deeply."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._named: dict[str, str] | None = None
        self._types_by_text: dict[str, Type] = {"void": _VOID, "ptr": Type(_WORD, _WORD, ("ptr",))}
        layout = _LAYOUT.search(text)
        self._wide = _WIDE if layout is not None and "-i128:128" in layout[1] else _WORD

    def read(self, text: str) -> Type:
        """Return the type that a text consists of. Raise `ValueError` if the text is not a type, or continues after the type."""
        parsed = self._types_by_text.get(text)
        if parsed is None:
            parsed, end = self._read_type(text, 0)
            if end != len(text):
                raise ValueError(f"the LLVM assembly continues after a type: {text[:80]!r}")
            self._types_by_text[text] = parsed
        return parsed

    def leading(self, text: str, start: int) -> Type:
        """Return the type that begins at a position of a text. Raise `ValueError` if no type begins there."""
        return self._read_type(text, start)[0]

    def _read_type(self, text: str, position: int) -> tuple[Type, int]:
        """Return the type at a position, and the position after it. Raise `ValueError` if there is no type."""
        if text.startswith("{", position):
            return self._read_structure(text, position + 1, packed=False)
        if text.startswith("<{", position):
            structure, end = self._read_structure(text, position + 2, packed=True)
            return structure, end + 1
        if text.startswith(("[", "<"), position):
            return self._read_repeated(text, position)
        match = _WORD_OF_TYPE.match(text, position)
        if match is None:
            raise ValueError(f"the LLVM assembly has no type at {text[position : position + 80]!r}")
        word, end = match[0], match.end()
        if word == "ptr" and text.startswith(" addrspace(", end):
            end = text.index(")", end) + 1
            return Type(_WORD, _WORD, (_without_separators(text[position:end]),)), end
        if word == "target" and text.startswith("(", end):
            end = text.index(")", end) + 1
            return Type(-1, 1, (_without_separators(text[position:end]),)), end
        word_type = self._types_by_text.get(word)
        if word_type is None:
            word_type = self._types_by_text[word] = self._word_type(word)
        return word_type, end

    def _word_type(self, word: str) -> Type:
        """Return the type that one word names. A type of unknown size has the size -1. See `read` for the exception."""
        if word[0] == "i" and word[1:].isdecimal():
            bits = int(word[1:])
            align = 1
            while align * _BYTE < bits and align < _WIDE:
                align *= 2
            align = min(align, self._wide)
            pieces = ("i64", "i64") if bits == _BYTE * _WIDE else (word,)  # C front ends pass an i128 as two halves
            size = max(align_up(bits, _BYTE) // _BYTE, 1)
            return Type(align_up(size, align), align, pieces)
        if word in _FLOATS:
            name, size = _FLOATS[word]
            return Type(size, size, (name,))
        if word[0] == "%":
            self._named = named_types(self._text) if self._named is None else self._named
            return self.read(self._named.get(word, "opaque"))
        return Type(-1, 1, (_without_separators(word),))

    def _read_structure(self, text: str, position: int, *, packed: bool) -> tuple[Type, int]:
        """Return the structure whose first member is at a position, and the position after the structure.

        A `packed` structure has no padding. See `_read_type` for the exception.
        """
        size, align, pieces = 0, 1, list[str]()
        while True:
            while text.startswith((" ", ","), position):
                position += 1
            if text.startswith("}", position):
                break
            part, position = self._read_type(text, position)
            step = 1 if packed else part.align
            size = -1 if size < 0 or part.size < 0 else align_up(size, step) + part.size
            align = max(align, step)
            pieces += part.pieces
        size = size if size < 0 else align_up(size, align)
        limited = tuple(pieces) if len(pieces) <= _MOST_PIECES else (f"memory{size}",)
        return Type(size, align, limited, is_aggregate=True), position + 1

    def _read_repeated(self, text: str, position: int) -> tuple[Type, int]:
        """Return the array or vector at a position, and the position after it. Raise `ValueError` if it is malformed."""
        closing = "]" if text[position] == "[" else ">"
        match = _COUNT.match(text, position + 1)
        if match is None:
            raise ValueError(f"the LLVM assembly has an array or vector without a length: {text[position : position + 80]!r}")
        count = int(match[2])
        part, end = self._read_type(text, match.end())
        if not text.startswith(closing, end):
            raise ValueError(f"the LLVM assembly has an array or vector without an end: {text[position : position + 80]!r}")
        if closing == ">":
            return _vector_type(part, count, is_scalable=bool(match[1])), end + 1
        size = part.size * count if part.size >= 0 else -1
        pieces = part.pieces * count if count * len(part.pieces) <= _MOST_PIECES else (f"memory{size}",)
        return Type(size, part.align, pieces, is_aggregate=True), end + 1


def named_types(text: str) -> dict[str, str]:
    """Return the definitions of the named types in a printed module, by their names with ``%``."""
    return {match[1]: match[2] for line in lines_from(text, "%") if (match := _NAMED_TYPE.fullmatch(line))}


def _without_separators(text: str) -> str:
    """Return a text with underscores instead of spaces and of characters that separate types."""
    return _NOT_WORDS.sub("_", text).replace(" ", "_")


def split_words(text: str) -> list[str]:
    """Split a text into words, except inside brackets or quotes."""
    if not _BRACKETS.search(text):
        return text.split()
    return split_at(text, " ")


def split_type(words: list[str]) -> tuple[str, list[str]]:
    """Return the type at the start of `words`, and the remaining words.

    An address space is part of a pointer type. It precedes ``ptr`` if the words are in reverse order, as for a function's result.
    """
    first = 1 if words[0].startswith("addrspace(") else 0
    attributes = words[first + 1 :]
    if not first and attributes and attributes[0].startswith("addrspace("):
        return " ".join(words[:2]), attributes[1:]
    return (f"ptr {words[0]}" if first else words[0]), attributes


def _vector_type(element: Type, count: int, *, is_scalable: bool) -> Type:
    """Return the type of a vector of `count` elements. If `is_scalable` is true, the size of the vector is unknown (-1).

    The size of other vectors is the next power of two.
    """
    piece = element.pieces[0]
    bits = count * (int(piece[1:]) if piece[0] == "i" and len(element.pieces) == 1 else element.size * _BYTE)
    size = 1
    while size * _BYTE < bits:
        size *= 2
    return Type(-1, size, (f"scalable v{bits}",)) if is_scalable else Type(size, size, (f"v{bits}",))
