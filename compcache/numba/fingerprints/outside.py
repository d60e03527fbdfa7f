"""Detects values that code reads without naming them: the environment of the process, files, and attributes with computed names."""

from __future__ import annotations

import functools
import sys

from compcache.numba.registered.code_reads import HASH_METHOD
from compcache.numba.registered.refusals import Unidentifiable
from compcache.numba.registered.reviewed import NAMESPACE_ATTRIBUTES, NOT_IN_KEYS

TYPE_CHECKING = False
if TYPE_CHECKING:
    import dis
    from types import CodeType

    from compcache.numba.registered.code_reads import Reads

__all__ = ["is_reader", "may_read_anything", "reads_by_name", "reads_globals_by_text"]

#: Functions that read attributes whose names are given as text, with the position of the first such argument.
_READERS = {"attrgetter": 0, "getattr": 1, "getattr_static": 1, "hasattr": 1, "methodcaller": 0}
_ALL_READERS = (
    ("builtins", "getattr"), ("builtins", "hasattr"), ("inspect", "getattr_static"), ("operator", "attrgetter"),
    ("operator", "methodcaller"),
)  # fmt: skip
#: Functions that read attributes of any value without naming them.
_READERS_OF_ALL = (
    ("builtins", "dir"), ("dataclasses", "asdict"), ("dataclasses", "astuple"), ("dataclasses", "fields"), ("dataclasses", "replace"),
)  # fmt: skip
#: Modules whose functions may read any attribute without naming it.
_MODULES_THAT_READ_ALL = frozenset(("_pickle", "annotationlib", "inspect", "pickle", "pydoc"))
_ATTRIBUTES_THAT_READ_ALL = frozenset((
    "__dir__", "__getattribute__", "__getstate__", "__reduce__", "__reduce_ex__", "format_map", "vformat",
))  # fmt: skip
_LOGGER_ATTRIBUTES = frozenset(("disabled", "handlers", "level", "manager", "propagate"))
_LOGGING = frozenset(("getLogger", "logging"))
_LOADS_OF_VALUES = frozenset(("LOAD_CONST", "LOAD_FAST", "LOAD_FAST_BORROW"))
_FIELD = r"\.(\w+)"  # a field that `str.format` reads from an argument
#: Functions that read globals of a module by names in text. `sys._getframe` returns the frame of the calling code. For a code generator,
#: this is code of its package.
_READERS_BY_TEXT = (("builtins", "eval"), ("builtins", "exec"), ("builtins", "globals"), ("sys", "_getframe"))


def _is_among(value: object, functions: tuple[tuple[str, str], ...]) -> bool:
    """Return whether a value is one of these functions, given by module and name. Modules that are not imported are skipped."""
    return any(getattr(sys.modules.get(module), name, functions) is value for module, name in functions)  # no value is `functions`


def reads_globals_by_text(value: object) -> bool:
    """Return whether a value is `eval`, `exec`, `globals` or `sys._getframe`."""
    return _is_among(value, _READERS_BY_TEXT)


def is_reader(value: object, name: str) -> bool:
    """Return whether a value is `getattr` or a similar function under its own name, so that `reads_by_name` can examine its calls."""
    return name in _READERS and _is_among(value, _ALL_READERS)


def may_read_anything(value: object) -> bool:
    """Return whether a function may read attributes that no code names."""
    return _is_among(value, (*_ALL_READERS, *_READERS_OF_ALL)) or getattr(value, "__module__", None) in _MODULES_THAT_READ_ALL


def reads_by_name(code: CodeType, reads: Reads, *, may_lead_anywhere: bool) -> tuple[tuple[str, ...], bool]:
    """Return the attributes that code reads from any object. `reads` are the reads of the code object.

    `may_lead_anywhere` is whether the code may read attributes that refer to values that no code names.

    Returns:
        The names of the attributes, including names that are given as text; and whether the code may read further attributes by computed
        names.

    Raises:
        Unidentifiable: no key covers an attribute, or, unless `may_lead_anywhere`, an attribute refers to values that no code names.
    """
    globals_read = [name for name, *_ in reads.chains]
    namespaces = NAMESPACE_ATTRIBUTES.intersection((*reads.attributes, *globals_read))
    if namespaces and not may_lead_anywhere:
        raise Unidentifiable(f"{code.co_qualname} reads the attribute {min(namespaces)!r}: read the values by their own names")
    uncovered = NOT_IN_KEYS.intersection(reads.attributes)
    if code.co_name == HASH_METHOD:
        uncovered -= {HASH_METHOD}  # this method may call the method of its base
    if any(not _LOGGING.isdisjoint(chain) for chain in reads.chains):
        uncovered |= _LOGGER_ATTRIBUTES.intersection(reads.attributes)  # the logger need not be a value that the walk reaches
    if uncovered:
        raise Unidentifiable(
            f"{code.co_qualname} reads the attribute {min(uncovered)!r}, which differs between processes: read the attribute in other code"
        )
    reads_all = not _ATTRIBUTES_THAT_READ_ALL.isdisjoint(reads.attributes)
    names = {name for chain in reads.chains for name in chain}.union(reads.attributes)
    if names.isdisjoint(_READERS) and "format" not in names:
        return reads.attributes, reads_all
    texts = _names_in_calls(code)
    return (*reads.attributes, *dict.fromkeys(texts or ())), reads_all or texts is None


@functools.lru_cache(maxsize=1000)
def _names_in_calls(code: CodeType) -> tuple[str, ...] | None:
    """Return the names that calls of `getattr` and similar functions, and of `str.format`, give as text; None if a name is computed."""
    import dis
    import re

    names: list[str] = []
    instructions = list(dis.get_instructions(code))
    for at, instruction in enumerate(instructions):
        if not instruction.opname.startswith(("LOAD_", "IMPORT_FROM")) or instruction.opname in _LOADS_OF_VALUES:
            continue
        if instruction.argval in _READERS:
            texts = _texts_of_call(instructions, at + 1, _READERS[instruction.argval])
            if texts is None:
                return None
            names += [name for text in texts for name in text.split(".")]
        elif instruction.argval == "format":
            if instructions[at - 1].opname != "LOAD_CONST":
                return None
            names += re.findall(_FIELD, str(instructions[at - 1].argval))
    return tuple(names)


def _texts_of_call(instructions: list[dis.Instruction], start: int, position: int) -> list[str] | None:
    """Return the text that a call gives as its argument `position`; with position 0, the texts of all its arguments.

    The instruction before `start` loads the function. The argument begins where the depth of the stack equals `position`.

    The result is None if one of these arguments is not a text that a single instruction loads, or if this is not a plain call.
    """
    import dis

    start += instructions[start].opname == "PUSH_NULL"
    depth, begin = 0, start
    for at in range(start, len(instructions)):
        instruction = instructions[at]
        if instruction.opname in ("PRECALL", "CALL") and depth == instruction.arg:
            arguments = instructions[begin:at] if position else instructions[start:at]
            return _constant_texts(arguments, 1 if position else depth)
        if depth == position:
            begin = at
        if instruction.opcode in dis.hasjrel or instruction.opname.startswith(("STORE_", "POP_", "RETURN_", "CALL_")):
            return None
        depth += dis.stack_effect(instruction.opcode, instruction.arg, jump=False)
        if depth < 0:
            return None
    return None


def _constant_texts(given: list[dis.Instruction], count: int) -> list[str] | None:
    """Return the texts that the first `count` of the `given` instructions load.

    The result is None if one of the instructions loads another value, or if the following instructions remove the texts from the stack.
    """
    texts = [instruction.argval for instruction in given[:count] if instruction.opname == "LOAD_CONST"]
    if len(texts) != count or not all(isinstance(text, str) for text in texts):
        return None
    import dis

    depth = 0
    for instruction in given[count:]:
        depth += dis.stack_effect(instruction.opcode, instruction.arg, jump=False)
        if depth < 1:
            return None
    return texts
