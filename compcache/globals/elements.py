"""Checks that values match the elements of array variables when a module is added. Loads rely on this check."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from compcache.globals.blocks import Buffer, Bytes, Text
from compcache.globals.definition import invalid_error

if TYPE_CHECKING:
    from compcache.globals.definition import GlobalDefinition

__all__ = ["check_elements"]

_LEVEL = re.compile(r"[\[<](\d+) x (.*)[\]>]\Z")
_NATIVE_ORDER = ("@", "=", "<" if sys.byteorder == "little" else ">")
#: The letters of `struct` for integers and for floating-point numbers.
_KINDS = {"i": "bhilqnBHILQNc?", "f": "efd"}
#: The name in signatures, the kind and the size of element types, by LLVM type. LLVM's integers have no sign, and C's `bool` is `i8`.
_ELEMENTS = {
    "i1": ("bool", "i", 1), "i8": ("i8", "i", 1), "i16": ("i16", "i", 2), "i32": ("i32", "i", 4), "i64": ("i64", "i", 8),
    "half": ("f16", "f", 2), "float": ("f32", "f", 4), "double": ("f64", "f", 8),
}  # fmt: skip


def check_elements(definition: GlobalDefinition, llvm_type: str, size: int) -> None:
    """Check that the value for an array of numbers has the right type and length. Other values and variables are not checked.

    A buffer must have the number and the type of the array's elements. Bytes, str and buffers of bytes must have the array's size. For an
    array of bytes, bytes and str may be shorter, as in C.

    Args:
        definition: the value.
        llvm_type: the LLVM type of the variable.
        size: the size of the variable in bytes.

    Raises:
        GlobalValidationError: the value does not fit the array.
    """
    count, element = _flatten_type(llvm_type)
    if element not in _ELEMENTS or not isinstance(definition, (Buffer, Bytes, Text)):
        return
    name, kind, width = _ELEMENTS[element]
    if isinstance(definition, Buffer):
        data, actual = definition.data, _kind_and_size(definition)
        value_text = f"a buffer of {len(data) // definition.itemsize} elements of format {definition.format!r}"
        is_of_bytes = _format_letter(definition.format) in ("B", "c")
        is_fitting = len(data) == size and (is_of_bytes or actual == (kind, width))
    else:
        data = definition.encode()
        value_text = f"a value of {len(data)} bytes"
        is_fitting = len(data) == size or (element == "i8" and len(data) < size)
    if not is_fitting:
        raise invalid_error(f"{value_text} does not fit the type {llvm_type}: use {count} elements of {name}, or {size} bytes")


def _flatten_type(llvm_type: str) -> tuple[int, str]:
    """Return the total number of elements of an array or vector type, and the LLVM type of an element."""
    count = 1
    while match := _LEVEL.match(llvm_type):
        count *= int(match[1])
        llvm_type = match[2]
    return count, llvm_type


def _kind_and_size(buffer: Buffer) -> tuple[str, int]:
    """Return the kind and the size of a buffer's elements. The kind is "" unless they are numbers in native byte order."""
    letter = _format_letter(buffer.format)
    kinds = [kind for kind, letters in _KINDS.items() if len(letter) == 1 and letter in letters]
    return kinds[0] if kinds else "", buffer.itemsize


def _format_letter(format_: str) -> str:
    """Return the letter of a format of `struct` for one element, without the mark of the native byte order."""
    return format_[1:] if format_[:1] in _NATIVE_ORDER else format_
