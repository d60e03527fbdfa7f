"""What a code object reads from outside: the globals, and the attribute chains that start at them.

Read straight off the bytecode of CPython 3.11 to 3.14; `dis` would take fifty times as long.
"""

from __future__ import annotations

import sys
from opcode import opmap
from types import CodeType
from typing import NamedTuple

__all__ = ["Reads", "reads_of"]

_EXTENDED = opmap["EXTENDED_ARG"]
_CACHE = opmap.get("CACHE", 0)
_GLOBAL = {opmap[name] for name in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS") if name in opmap}
_SHIFTED_GLOBAL = opmap["LOAD_GLOBAL"]
_CELL = {opmap[name] for name in ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF") if name in opmap}
_ATTRIBUTE = opmap["LOAD_ATTR"]
_METHOD = opmap.get("LOAD_METHOD", -1)
_ATTRIBUTE_SHIFT = 1 if sys.version_info >= (3, 12) else 0


class Reads(NamedTuple):
    """`chains`: each global with the attributes read from it at once; `cells` the same for cell variables, by number.

    `attributes` are all names of attributes that the code reads from anything.
    """

    chains: tuple[tuple[str, ...], ...]
    cells: tuple[tuple[int, tuple[str, ...]], ...]
    attributes: tuple[str, ...]


def reads_of(code: CodeType) -> Reads:
    """What one code object reads, nested ones not included."""
    names = code.co_names
    chains: dict[tuple[str, ...], None] = {}
    cells: dict[tuple[int, tuple[str, ...]], None] = {}
    attributes: dict[str, None] = {}
    data = code.co_code
    argument = 0
    start: str | int | None = None
    tail: list[str] = []

    def close() -> None:
        if isinstance(start, str):
            chains[(start, *tail)] = None
        elif start is not None:
            cells[start, tuple(tail)] = None

    for at in range(0, len(data), 2):
        op = data[at]
        if op == _CACHE:
            continue
        argument |= data[at + 1]
        if op == _EXTENDED:
            argument <<= 8
            continue
        if op in (_ATTRIBUTE, _METHOD):
            name = names[argument >> _ATTRIBUTE_SHIFT if op == _ATTRIBUTE else argument]
            attributes[name] = None
            if start is not None:
                tail.append(name)
        else:
            close()
            start, tail = None, []
            if op in _GLOBAL:
                start = names[argument >> 1 if op == _SHIFTED_GLOBAL else argument]
            elif op in _CELL:
                start = argument
        argument = 0
    close()
    return Reads(tuple(chains), tuple(cells), tuple(attributes))
