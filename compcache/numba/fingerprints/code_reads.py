"""Finds the reads of a code object: the globals, and the attribute chains that start at them.

Parses the bytecode of CPython 3.11 to 3.14 directly; `dis` would take fifty times as long.
"""

from __future__ import annotations

import re
import sys
from opcode import opmap
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from types import CodeType

__all__ = ["Reads", "reads_of"]

_ATTRIBUTE_SHIFT = 1 if sys.version_info >= (3, 12) else 0
#: One letter for each relevant instruction, so that a regular expression finds them: a loop over all would take
#: ten times as long.
_LETTERS = {
    "CACHE": "c", "EXTENDED_ARG": "e", "LOAD_GLOBAL": "g", "LOAD_NAME": "n", "LOAD_FROM_DICT_OR_GLOBALS": "n",
    "LOAD_ATTR": "a", "LOAD_METHOD": "m", "IMPORT_FROM": "m", "IMPORT_NAME": "i", "LOAD_SUPER_ATTR": "s",
}  # fmt: skip
_MARKS = bytearray(b"." * 256)
for _name, _letter in _LETTERS.items():
    if opmap.get(_name, 256) < 256:  # noqa: PLR2004 - pseudo instructions never occur in code objects
        _MARKS[opmap[_name]] = ord(_letter)
_READ = re.compile(rb"e*[gn](?:c*e*[am])*|e*[amis]")


class Reads(NamedTuple):
    """The reads of a code object.

    `chains`: each global with the attributes read directly from it; `attributes`: all attributes read from any object;
    `imports`: the modules that it imports, as written, without the dots of relative imports.
    """

    chains: tuple[tuple[str, ...], ...]
    attributes: tuple[str, ...]
    imports: tuple[str, ...]


def reads_of(code: CodeType) -> Reads:
    """The reads of one code object, without nested ones."""
    data = code.co_code
    marks = data[::2].translate(_MARKS)
    arguments = data[1::2]
    chains: dict[tuple[str, ...], None] = {}
    attributes: dict[str, None] = {}
    imports: dict[str, None] = {}
    reads = {(match[0], arguments[match.start() : match.end()]): None for match in _READ.finditer(marks)}
    for letters, numbers in reads:  # each once: loops and formulas repeat reads
        start, tail = _decode(letters, numbers, code.co_names)
        if letters.endswith(b"i"):
            imports[tail.pop()] = None
            continue
        attributes.update(dict.fromkeys(tail))
        if start is not None:
            chains[(start, *tail)] = None
    return Reads(tuple(chains), tuple(attributes), tuple(imports))


def _decode(marks: bytes, arguments: bytes, names: tuple[str, ...]) -> tuple[str | None, list[str]]:
    """The global that a chain starts with, if any, and the attributes that follow."""
    start: str | None = None
    tail: list[str] = []
    high = 0
    for mark, low in zip(marks.decode(), arguments, strict=True):
        argument = high | low
        high = argument << 8 if mark == "e" else 0
        if mark == "g":
            start = names[argument >> 1]
        elif mark == "n":
            start = names[argument]
        elif mark == "a":
            tail.append(names[argument >> _ATTRIBUTE_SHIFT])
        elif mark in "mi":
            tail.append(names[argument])
        elif mark == "s":
            tail.append(names[argument >> 2])
    return start, tail
