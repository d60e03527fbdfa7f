"""Detects what code reads without naming it: the environment of the process, files, attributes whose names are computed at run time."""

from __future__ import annotations

import functools
import sys

from compcache.numba.registered.refusals import Unidentifiable
from compcache.numba.registered.reviewed import LEADS_ANYWHERE, NOT_IN_KEYS

TYPE_CHECKING = False
if TYPE_CHECKING:
    import dis
    from types import CodeType

    from compcache.numba.registered.code_reads import Reads

__all__ = ["is_reader", "may_read_anything", "names_by_text", "reads_by_name"]

#: Functions that read attributes by names given as text, with the position of the first such argument.
_READERS = {"attrgetter": 0, "getattr": 1, "getattr_static": 1, "hasattr": 1, "methodcaller": 0}
_ALL_READERS = (
    ("builtins", "getattr"), ("builtins", "hasattr"), ("inspect", "getattr_static"), ("operator", "attrgetter"),
    ("operator", "methodcaller"),
)  # fmt: skip
#: Functions that read attributes without naming them: of any value, or of these modules.
_READ_ALL = (
    ("builtins", "dir"), ("dataclasses", "asdict"), ("dataclasses", "astuple"), ("dataclasses", "fields"), ("dataclasses", "replace"),
    ("typing", "get_type_hints"),
)  # fmt: skip
_MODULES_THAT_READ_ALL = frozenset(("_pickle", "annotationlib", "inspect", "pickle", "pydoc"))
_ATTRIBUTES_THAT_READ_ALL = frozenset((
    "__dir__", "__getattribute__", "__getstate__", "__reduce__", "__reduce_ex__", "format_map", "vformat",
))  # fmt: skip
_OF_LOGGERS = frozenset(("disabled", "handlers", "level", "manager", "propagate"))
_LOGGING = frozenset(("getLogger", "logging"))
_LOADS_OF_VALUES = frozenset(("LOAD_CONST", "LOAD_FAST", "LOAD_FAST_BORROW"))
_FIELD = r"\.(\w+)"  # of an object that is passed to `str.format`


#: Functions that read globals of the module by names in text. Frames are those of calling code: for code generators of a package, the
#: package's.
_BY_TEXT = (("builtins", "eval"), ("builtins", "exec"), ("builtins", "globals"), ("sys", "_getframe"))


def _is_among(value: object, functions: tuple[tuple[str, str], ...]) -> bool:
    """Return whether a function is one of these. A function of a module that is not imported cannot be."""
    return any(getattr(sys.modules.get(module), name, functions) is value for module, name in functions)


def names_by_text(value: object) -> bool:
    """Return whether this is `eval`, `exec`, `globals` or `sys._getframe`."""
    return _is_among(value, _BY_TEXT)


def is_reader(value: object, name: str) -> bool:
    """Return whether this is `getattr` or similar under its own name, so that `reads_by_name` can examine its calls."""
    return name in _READERS and _is_among(value, _ALL_READERS)


def may_read_anything(value: object) -> bool:
    """Return whether this function may read attributes of objects although no code names them."""
    return _is_among(value, (*_ALL_READERS, *_READ_ALL)) or getattr(value, "__module__", None) in _MODULES_THAT_READ_ALL


def reads_by_name(code: CodeType, reads: Reads, *, may_lead_anywhere: bool = False) -> tuple[tuple[str, ...], bool]:
    """Return the attributes that code reads from any object, including those named by text, and whether it may read others by computed
    names.

    Raises:
        Unidentifiable: an attribute is in no key, or leads to values that no code names (unless this is allowed).
    """
    anywhere = LEADS_ANYWHERE.intersection((*reads.attributes, *(chain[0] for chain in reads.chains)))
    if anywhere and not may_lead_anywhere:
        raise Unidentifiable(f"{code.co_qualname} reads {min(anywhere)}, through which it can reach values that its code does not name")
    untold = NOT_IN_KEYS.intersection(reads.attributes)
    if any(not _LOGGING.isdisjoint(chain) for chain in reads.chains):
        untold |= _OF_LOGGERS.intersection(reads.attributes)  # of a logger that no value leads to
    if untold:
        raise Unidentifiable(f"{code.co_qualname} reads {min(untold)}, which no key covers")
    reads_all = not _ATTRIBUTES_THAT_READ_ALL.isdisjoint(reads.attributes)
    names = {name for chain in reads.chains for name in chain}.union(reads.attributes)
    if names.isdisjoint(_READERS) and "format" not in names:
        return reads.attributes, reads_all
    texts = _names_given(code)
    return (*reads.attributes, *dict.fromkeys(texts or ())), reads_all or texts is None


@functools.lru_cache(maxsize=1000)
def _names_given(code: CodeType) -> tuple[str, ...] | None:
    """Return the names that calls of `getattr` and similar, and of `str.format`, give as text; None if one is computed."""
    import dis
    import re

    found: list[str] = []
    instructions = list(dis.get_instructions(code))
    for at, instruction in enumerate(instructions):
        if not instruction.opname.startswith(("LOAD_", "IMPORT_FROM")) or instruction.opname in _LOADS_OF_VALUES:
            continue
        if instruction.argval in _READERS:
            texts = _texts_of_call(instructions, at + 1, _READERS[instruction.argval])
            if texts is None:
                return None
            found += [name for text in texts for name in text.split(".")]
        elif instruction.argval == "format":
            if instructions[at - 1].opname != "LOAD_CONST":
                return None
            found += re.findall(_FIELD, str(instructions[at - 1].argval))
    return tuple(found)


def _texts_of_call(instructions: list[dis.Instruction], start: int, position: int) -> list[str] | None:
    """Return the constant texts among a call's arguments from this position on; the function was just loaded. None if it is no such call.

    Follows the depth of the stack: an argument begins where the depth equals its position. It is constant if a single load produces it.
    """
    import dis

    start += instructions[start].opname == "PUSH_NULL"
    depth, begin = 0, start
    for at in range(start, len(instructions)):
        instruction = instructions[at]
        if instruction.opname in ("PRECALL", "CALL") and depth == instruction.arg:
            given = instructions[begin:at] if position else instructions[start:at]
            return _constants(given, 1 if position else depth)
        if depth == position:
            begin = at
        if instruction.opcode in dis.hasjrel or instruction.opname.startswith(("STORE_", "POP_", "RETURN_", "CALL_")):
            return None
        depth += dis.stack_effect(instruction.opcode, instruction.arg, jump=False)
        if depth < 0:
            return None
    return None


def _constants(given: list[dis.Instruction], count: int) -> list[str] | None:
    """Return the texts that the first instructions load, if each is a constant that the following ones leave on the stack."""
    found = [instruction.argval for instruction in given[:count] if instruction.opname == "LOAD_CONST"]
    if len(found) != count or not all(isinstance(text, str) for text in found):
        return None
    import dis

    depth = 0
    for instruction in given[count:]:
        depth += dis.stack_effect(instruction.opcode, instruction.arg, jump=False)
        if depth < 1:
            return None
    return found
