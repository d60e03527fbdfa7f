"""Finds the values that a code object reads: globals, and the attribute chains that start at them.

Parses the bytecode of CPython 3.11 to 3.14 directly, because `dis` would take fifty times as long.
"""

from __future__ import annotations

import sys
from opcode import opmap, opname

from compcache.interrupts import reraise_interrupt
from compcache.numba.registered.marks import is_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    import dis
    from collections.abc import Callable, Iterator
    from types import CodeType
    from typing import Any

    #: An instruction: its name, its argument, and its offset.
    Step = tuple[str, int, int]

__all__ = [
    "HASH_METHOD", "MISSING", "Reads", "cells_of", "functions_in_member", "functions_to_compile", "imported_reads", "is_part_of_hash",
    "names_used_by", "reads_of", "resolve",
]  # fmt: skip

_Function = type(lambda: 0)
MISSING = object()
#: A number for each relevant instruction, so that all other instructions are skipped at once.
_CACHE, _EXTENDED, _GLOBAL, _NAME, _ATTRIBUTE, _METHOD, _IMPORT, _SUPER = range(1, 9)
_KINDS = {
    "CACHE": _CACHE, "EXTENDED_ARG": _EXTENDED, "LOAD_GLOBAL": _GLOBAL, "LOAD_NAME": _NAME, "LOAD_FROM_DICT_OR_GLOBALS": _NAME,
    "LOAD_ATTR": _ATTRIBUTE, "LOAD_METHOD": _METHOD, "IMPORT_FROM": _METHOD, "IMPORT_NAME": _IMPORT, "LOAD_SUPER_ATTR": _SUPER,
}  # fmt: skip
_KIND_OF_OPCODE = bytearray(256)
for _name, _kind in _KINDS.items():
    if opmap.get(_name, 256) < 256:  # noqa: PLR2004 - pseudo instructions never occur in code objects
        _KIND_OF_OPCODE[opmap[_name]] = _kind
_BETWEEN_READS = bytes((_CACHE, _EXTENDED))


class Reads:
    """The reads of a code object.

    Attributes:
        chains: each global that is read, followed by the attributes that are read from it, one from the other.
        attributes: all attributes that are read from any object.
        imports: the imported modules, as written, without the dots of relative imports.
    """

    __slots__ = ("attributes", "chains", "imports")

    def __init__(self, chains: tuple[tuple[str, ...], ...], attributes: tuple[str, ...], imports: tuple[str, ...]) -> None:
        self.chains = chains
        self.attributes = attributes
        self.imports = imports


def reads_of(code: CodeType) -> Reads:
    """Return the reads of a code object, without the reads of nested code objects."""
    data, names = code.co_code, code.co_names
    kinds = data[::2].translate(_KIND_OF_OPCODE)  # each instruction has two bytes, the opcode first
    chains: dict[tuple[str, ...], None] = {}
    attributes: dict[str, None] = {}
    imports: dict[str, None] = {}
    chain: list[str] = []
    high_bits, extended_at, last_at = 0, -1, 0
    for at in [at for at, kind in enumerate(kinds) if kind >= _EXTENDED]:
        kind, argument = kinds[at], data[2 * at + 1]
        if extended_at == at - 1:
            argument |= high_bits << 8
        if kind == _EXTENDED:
            high_bits, extended_at = argument, at
            continue
        if chain and (kind not in _CHAIN_KINDS or kinds[last_at + 1 : at].strip(_BETWEEN_READS)):  # another instruction is in between
            chains[tuple(chain)] = None
            chain = []
        last_at = at
        if kind in (_GLOBAL, _NAME):
            chain = [names[argument >> _SHIFTS.get(kind, 0)]]
        elif kind == _IMPORT:
            imports[names[argument]] = None
        else:
            name = names[argument >> _SHIFTS.get(kind, 0)]
            attributes[name] = None
            if chain:
                chain.append(name)
    if chain:
        chains[tuple(chain)] = None
    return Reads(tuple(chains), tuple(attributes), tuple(imports))


_CHAIN_KINDS = frozenset((_ATTRIBUTE, _METHOD))
#: The numbers of low bits that are flags in the arguments of instructions. The index of the name follows.
_SHIFTS = {_GLOBAL: 1, _ATTRIBUTE: 1 if sys.version_info >= (3, 12) else 0, _SUPER: 2}


def resolve(chain: tuple[str, ...], namespace: dict[str, Any], stops_at: Callable[[Any], bool] | None = None) -> tuple[Any, int]:
    """Follow a chain of attributes as far as it passes through modules, except modules for which `stops_at` returns True.

    `chain` is the name of a global in `namespace`, followed by the names of attributes. Return the value of the last name that was
    followed, or `MISSING` if the value does not exist; and the number of names that were followed.
    """
    value = namespace.get(chain[0], MISSING)
    if value is MISSING:
        builtins = namespace.get("__builtins__", {})
        value = (builtins if isinstance(builtins, dict) else vars(builtins)).get(chain[0], MISSING)
    at = 1
    while at < len(chain) and is_module(value) and not (stops_at is not None and stops_at(value)):
        value = getattr(value, chain[at], MISSING)
        at += 1
    return value, at


def cells_of(function: Any) -> list[tuple[str, Any]]:
    """Return the variables that a function closes over, with their values. The value of an empty cell is `MISSING`."""
    rows = []
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            rows.append((name, cell.cell_contents))
        except ValueError as error:
            reraise_interrupt(error)
            rows.append((name, MISSING))
    return rows


def functions_in_member(item: Any) -> list[Any]:
    """Return the callables in a class's member: a property's getter and setter, another descriptor's function, or the function itself."""
    inner = (item.fget, item.fset) if isinstance(item, property) else (getattr(item, "__func__", getattr(item, "func", item)),)
    return [part for part in inner if callable(part) and (part is not item or isinstance(item, _Function))]


def names_used_by(code: CodeType, instructions: frozenset[int]) -> Iterator[str]:
    """Yield the names that instructions with these opcodes use in a code object and its nested code objects."""
    if not instructions.isdisjoint(code.co_code[::2]):  # decoding is slow
        yield from [code.co_names[argument] for instruction, argument in _decode_instructions(code) if instruction in instructions]
    for constant in code.co_consts:
        if isinstance(constant, type(code)):
            yield from names_used_by(constant, instructions)


def functions_to_compile(code: CodeType, compiles: Callable[[tuple[str, ...]], bool]) -> list[CodeType]:
    """Return the code of the nested functions that a function only returns. It neither calls nor stores them, nor passes them on.

    A nested function that is assigned to a variable is included if each other use of the variable returns its value, or is in included
    functions. It may have a decorator for which `compiles` is true, which is a global or attributes of one. The result is empty for
    generators and coroutines, and for code that names `locals`.
    """
    if code.co_flags & _SUSPENDS or "locals" in code.co_names:
        return []
    variables = _variables_of(code)
    steps = [*_relevant_instructions(code), *[("", 0, 0)] * 3]
    functions: list[tuple[CodeType, str | int]] = []  # with the variable, or one of the two constants
    escaping: set[str | int] = {_ESCAPES}
    stores = set()
    for at, (name, argument, _) in enumerate(steps):
        if name == "MAKE_FUNCTION":
            user = at + 2 if steps[at + 1][:2] == ("CALL", 0) and compiles(_decorator_of(code, steps, at)) else at + 1
            use, number, _ = steps[user]
            stores.add(user)
            variable = variables[number] if use in ("STORE_FAST", "STORE_DEREF") else _RETURNED if use == "RETURN_VALUE" else _ESCAPES
            functions.append((code.co_consts[steps[at - 1][1]], variable))
        elif name in _OF_VARIABLES and not (at in stores or steps[at + 1][0] == "RETURN_VALUE" or _is_closed_over(code, name, argument)):
            escaping.add(variables[argument])
    while True:
        others = [function for function, variable in functions if variable in escaping]  # equal functions may share a constant
        compiled = [function for function, variable in functions if variable not in escaping and function not in others]
        running = [constant for constant in code.co_consts if isinstance(constant, type(code)) and constant not in compiled]
        captured = {name for function in running for name in function.co_freevars}
        if captured <= escaping:
            return compiled
        escaping |= captured


_RETURNED, _ESCAPES = -1, -2
_OF_VARIABLES = frozenset(name for name in opname if any(kind in name for kind in ("CLOSURE", "DEREF", "FAST")))


def _variables_of(code: CodeType) -> tuple[str, ...]:
    """Return the names of a code object's variables by their numbers in instructions."""
    return (*code.co_varnames, *[name for name in code.co_cellvars if name not in code.co_varnames], *code.co_freevars)


def _is_closed_over(code: CodeType, name: str, argument: int) -> bool:
    """Return whether an instruction loads the cell of a variable for a nested function, and not the value."""
    is_cell = _variables_of(code)[argument] in (*code.co_cellvars, *code.co_freevars)
    return name == "LOAD_CLOSURE" or (name in ("LOAD_FAST", "LOAD_FAST_BORROW") and is_cell)


def _decorator_of(code: CodeType, steps: list[Step], at: int) -> tuple[str, ...]:
    """Return the global and the attributes that are read directly before the function that is made at a step.

    The result is empty if another value precedes the function, or if a jump leads between the two.
    """
    end, at = steps[at + 2][2], at - 2
    name, count, _ = steps[at]
    if name == "BUILD_TUPLE" and all(_is_closed_over(code, *step[:2]) for step in steps[at - count : at]):
        at -= count + 1
    chain: list[str] = []
    while steps[at][0] == "LOAD_ATTR":
        chain.insert(0, code.co_names[steps[at][1] >> _SHIFTS[_ATTRIBUTE]])
        at -= 1
    if steps[at][0] != "LOAD_GLOBAL":
        return ()
    import dis  # slow to import

    is_target = any(steps[at][2] < target <= end for target in dis.findlabels(code.co_code))  # type: ignore[arg-type]
    return () if is_target else (code.co_names[steps[at][1] >> _SHIFTS[_GLOBAL]], *chain)


def is_part_of_hash(code: CodeType, value: Any) -> bool:
    """Return whether a value is `hash` or `id`, and the code that reads it is named `__hash__`.

    Callers accept such a read: sets and dictionaries call the method, and only the order of a set shows what it returns. They refuse other
    code that names `hash` or `__hash__`, so nothing else calls the method.
    """
    return code.co_name == HASH_METHOD and (value is hash or value is id)


HASH_METHOD = "__hash__"
_SUSPENDS = 0x20 | 0x80 | 0x100 | 0x200  # generators and coroutines, by `inspect.CO_GENERATOR` and similar flags
#: Instructions that may stand between those that make a function and those that use it, and do not use it themselves.
_WITHOUT_MEANING = frozenset(("CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "SET_FUNCTION_ATTRIBUTE"))


def _relevant_instructions(code: CodeType) -> Iterator[Step]:
    """Yield each instruction, except those of `_WITHOUT_MEANING`. One with two variables (`STORE_FAST_LOAD_FAST`) is two instructions."""
    for number, (instruction, argument) in enumerate(_decode_instructions(code)):
        name = opname[instruction]
        if name.count("_FAST") > 1:
            first, second = name.removesuffix("_BORROW").rsplit("_FAST", 1)[0].rsplit("_", 1)
            yield first, argument >> 4, 2 * number
            yield f"{second}_FAST", argument & 15, 2 * number
        elif name not in _WITHOUT_MEANING:
            yield name, argument, 2 * number


def _decode_instructions(code: CodeType) -> Iterator[tuple[int, int]]:
    """Yield the opcode and the argument of each instruction, with the bits of preceding `EXTENDED_ARG` instructions in the argument."""
    raw, high = code.co_code, 0
    for at in range(0, len(raw), 2):
        argument = high | raw[at + 1]
        yield raw[at], argument
        high = argument << 8 if raw[at] == opmap["EXTENDED_ARG"] else 0


def imported_reads(code: CodeType) -> Iterator[tuple[str, tuple[tuple[str, ...], ...] | None]]:
    """Yield the modules that a code object imports, each with the chains of attributes that are read from it.

    The chains are None for a relative import and `import a.b as c`, and if the code uses the module in ways that may read any attribute.
    """
    if opmap["IMPORT_NAME"] not in code.co_code[::2]:  # the opcodes
        return
    import dis  # slow to import

    instructions = [instruction for instruction in dis.get_instructions(code) if instruction.opname not in _IGNORED]
    for at, instruction in enumerate(instructions):
        if instruction.opname != "IMPORT_NAME":
            continue
        following = instructions[at + 1]
        is_renamed = following.opname == "IMPORT_FROM" and instructions[at - 1].argval is None  # `import a.b as c`
        is_absolute = at > 1 and instructions[at - 2].argval == 0
        if is_renamed or not is_absolute:
            yield instruction.argval, None
        elif following.opname == "IMPORT_FROM":
            yield instruction.argval, tuple(_imported_from(instructions, at + 1))
        elif following.opname == "STORE_FAST":
            top = instruction.argval.partition(".")[0]
            chains = _chains_of(instructions, following.argval)
            yield top, None if chains is None else tuple(chains)
        else:
            yield instruction.argval.partition(".")[0], None


_IGNORED = frozenset(("CACHE", "EXTENDED_ARG", "NOP", "RESUME"))


def _imported_from(instructions: list[dis.Instruction], at: int) -> Iterator[tuple[str, ...]]:
    """Yield the names that `from module import ...` imports. If such a name is used as a module, yield the chains that are read from it."""
    while instructions[at].opname == "IMPORT_FROM":
        name, store = instructions[at].argval, instructions[at + 1]
        chains = _chains_of(instructions, store.argval) if store.opname == "STORE_FAST" else None
        yield from [(name, *chain) for chain in chains or ((),)]
        at += 2


def _chains_of(instructions: list[dis.Instruction], variable: str) -> list[tuple[str, ...]] | None:
    """Return the chains of attributes that are read from a variable, or None if the variable is used in another way."""
    chains = []
    for at, instruction in enumerate(instructions):
        names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
        if variable not in names or "FAST" not in instruction.opname or instruction.opname == "STORE_FAST":
            continue
        if instruction.opname not in _LOADS:
            return None
        chain: list[str] = []
        while instructions[at + 1].opname in _ATTRIBUTES:
            at += 1  # noqa: PLW2901 - this follows the chain
            chain.append(instructions[at].argval)
        if not chain:
            return None
        chains.append(tuple(chain))
    return chains


_LOADS = frozenset(("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK", "STORE_FAST_LOAD_FAST"))
_ATTRIBUTES = frozenset(("LOAD_ATTR", "LOAD_METHOD"))
