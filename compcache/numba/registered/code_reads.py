"""Finds the reads of a code object: the globals, and the attribute chains that start at them.

Parses the bytecode of CPython 3.11 to 3.14 directly; `dis` would take fifty times as long.
"""

from __future__ import annotations

import re
import sys
from opcode import opmap
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import dis
    from collections.abc import Iterator
    from types import CodeType

__all__ = ["Reads", "imported_reads", "reads_of"]

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


def imported_reads(code: CodeType) -> Iterator[tuple[str, tuple[tuple[str, ...], ...] | None]]:
    """The modules that one code object imports, each with the chains of attributes that it reads of it.

    None in their place where it may read any: it does something else with the module than to read attributes of it, or the import is
    relative.
    """
    if opmap["IMPORT_NAME"] not in code.co_code[::2]:
        return
    import dis  # slow to import

    instructions = [one for one in dis.get_instructions(code) if one.opname not in _BETWEEN]
    for at, one in enumerate(instructions):
        if one.opname != "IMPORT_NAME":
            continue
        following = instructions[at + 1]
        is_renamed = following.opname == "IMPORT_FROM" and instructions[at - 1].argval is None  # `import a.b as c`
        if is_renamed or not _is_absolute(instructions, at):
            yield one.argval, None
        elif following.opname == "IMPORT_FROM":
            yield one.argval, tuple(_imported_from(instructions, at + 1))
        elif following.opname == "STORE_FAST":
            top = one.argval.partition(".")[0]
            chains = _chains_of(instructions, following.argval)
            yield top, None if chains is None else tuple(chains)
        else:
            yield one.argval.partition(".")[0], None


_BETWEEN = frozenset(("CACHE", "EXTENDED_ARG", "NOP", "RESUME"))


def _is_absolute(instructions: list[dis.Instruction], at: int) -> bool:
    return at > 1 and instructions[at - 2].argval == 0


def _imported_from(instructions: list[dis.Instruction], at: int) -> Iterator[tuple[str, ...]]:
    """What `from module import ...` takes; of a module among it, what is read of that one."""
    while instructions[at].opname == "IMPORT_FROM":
        name, store = instructions[at].argval, instructions[at + 1]
        chains = _chains_of(instructions, store.argval) if store.opname == "STORE_FAST" else None
        yield from [(name, *chain) for chain in chains or ((),)]
        at += 2


def _chains_of(instructions: list[dis.Instruction], variable: str) -> list[tuple[str, ...]] | None:
    """The attributes that are read of a variable, each from the variable on; None if it is used in other ways."""
    found = []
    for at, one in enumerate(instructions):
        names = one.argval if isinstance(one.argval, tuple) else (one.argval,)
        if variable not in names or one.opname == "STORE_FAST":
            continue
        if one.opname not in _LOADS:
            return None
        chain: list[str] = []
        while instructions[at + 1].opname in _ATTRIBUTES:
            at += 1  # noqa: PLW2901 - on through the chain
            chain.append(instructions[at].argval)
        if not chain:
            return None
        found.append(tuple(chain))
    return found


_LOADS = frozenset(("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK", "STORE_FAST_LOAD_FAST"))
_ATTRIBUTES = frozenset(("LOAD_ATTR", "LOAD_METHOD"))
