"""Checks whether a value fits the elements of its array, when a module is added. Loads rely on it."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from compcache.globals.blocks import Buffer, Bytes, Text
from compcache.globals.definition import invalid

if TYPE_CHECKING:
    from compcache.globals.definition import GlobalDefinition

__all__ = ["check_elements"]

_LEVEL = re.compile(r"[\[<](\d+) x (.*)[\]>]\Z")
_NATIVE_ORDER = ("@", "=", "<" if sys.byteorder == "little" else ">")
#: The comparable part of element types, by the letters of the struct module.
_KINDS = {"i": "bhilqnBHILQNc?", "f": "efd"}
#: By the LLVM type of elements: what signatures call it, its kind and size. Integers have no sign there, and C's `bool` is `i8`.
_ELEMENTS = {
    "i1": ("bool", "i", 1), "i8": ("i8", "i", 1), "i16": ("i16", "i", 2), "i32": ("i32", "i", 4), "i64": ("i64", "i", 8),
    "half": ("f16", "f", 2), "float": ("f32", "f", 4), "double": ("f64", "f", 8),
}  # fmt: skip


def check_elements(definition: GlobalDefinition, llvm_type: str, size: int) -> None:
    """Check bytes, a text or a buffer against the LLVM type of a variable of `size` bytes, if that is an array of numbers.

    A buffer has as many elements as the array, of the same type. Bytes, and buffers of bytes, are taken as they are, and have exactly the
    array's size; bytes and texts in an array of bytes may be shorter, as in C.

    Raises:
        GlobalValidationError: it does not fit.
    """
    count, element = _flattened(llvm_type)
    if element not in _ELEMENTS or not isinstance(definition, (Buffer, Bytes, Text)):
        return
    name, kind, width = _ELEMENTS[element]
    if isinstance(definition, Buffer):
        data, given = definition.data, _kind_and_size(definition)
        what = f"a buffer of {len(data) // definition.itemsize} elements of format {definition.format!r}"
        fits = len(data) == size and (given == (kind, width) or _letter(definition.format) in ("B", "c"))
    else:
        data = definition.encode()
        what = f"a value of {len(data)} bytes"
        fits = len(data) == size or (element == "i8" and len(data) < size)
    if not fits:
        raise invalid(f"{what} does not fit its storage, {llvm_type}: it takes {count} elements of {name}, or {size} raw bytes")


def _flattened(llvm_type: str) -> tuple[int, str]:
    """Return the number of elements of an array or vector, over all dimensions, and their type."""
    count = 1
    while match := _LEVEL.match(llvm_type):
        count *= int(match[1])
        llvm_type = match[2]
    return count, llvm_type


def _kind_and_size(buffer: Buffer) -> tuple[str, int]:
    """Return kind and size of a buffer's elements; no kind unless the format has one item in native byte order."""
    letter = _letter(buffer.format)
    kinds = [kind for kind, letters in _KINDS.items() if len(letter) == 1 and letter in letters]
    return kinds[0] if kinds else "", buffer.itemsize


def _letter(format_: str) -> str:
    return format_[1:] if format_[:1] in _NATIVE_ORDER else format_
