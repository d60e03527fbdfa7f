"""Which code may run while functions are compiled without being asked again in another process: what it can read must be known by content.

Such code is Python's, unlike that of compiled functions: it may import, read files and variables of the environment, and get at
attributes by names that it computes.
"""

from __future__ import annotations

from opcode import opmap

from compcache.numba.registered.library import is_library_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__all__ = ["is_hidden", "is_pure", "makes_names_of_text", "reads_attributes_by_name", "reads_from_outside"]

_Code = type((lambda: 0).__code__)
#: Modules of libraries whose functions give the same for the same arguments.
_PURE = frozenset((
    "abc", "ast", "builtins", "cmath", "collections", "compcache", "copy", "enum", "functools", "itertools", "keyword", "llvmlite", "math", "numba", "numbers",  # noqa: E501
    "numpy", "operator", "re", "string", "struct", "textwrap", "types", "typing", "warnings",
))  # fmt: skip
_OUTSIDE = frozenset(("__builtins__", "__import__", "__loader__", "__spec__", "breakpoint", "input", "locals", "open", "vars"))
#: Functions of NumPy that read files, settings of Numba that are no part of keys, and attributes by which Python's objects lead anywhere.
_ATTRIBUTES = frozenset((
    "NUMBA_NUM_THREADS", "__builtins__", "__closure__", "__dict__", "__getattribute__", "__globals__", "__self__", "__subclasses__", "__wrapped__",  # noqa: E501
    "cell_contents", "config", "ctypeslib", "f_back", "fromfile", "genfromtxt", "load", "loadtxt", "memmap", "py_func",
))  # fmt: skip
#: Functions that read attributes by names given as text.
_BY_NAME = frozenset(("attrgetter", "delattr", "dir", "getattr", "hasattr", "methodcaller", "setattr"))
_BY_TEXT = frozenset(("eval", "exec", "globals"))
_SENSITIVE = _OUTSIDE | _BY_NAME | _BY_TEXT
_IMPORT, _CONSTANT, _SMALL, _MORE = (opmap.get(name, -1) for name in ("IMPORT_NAME", "LOAD_CONST", "LOAD_SMALL_INT", "EXTENDED_ARG"))


def _all_codes(code: Any) -> Iterator[Any]:
    yield code
    for constant in code.co_consts:
        if type(constant) is _Code:
            yield from _all_codes(constant)


def makes_names_of_text(function: Any) -> bool:
    """Whether code can read globals of its module by names that only text has."""
    return any(not _BY_TEXT.isdisjoint(code.co_names) for code in _all_codes(function.__code__))


def reads_attributes_by_name(function: Any) -> bool:
    """Whether code reads attributes by names that it may compute."""
    return any(not _BY_NAME.isdisjoint(code.co_names) for code in _all_codes(function.__code__))


def is_pure(module: object) -> bool:
    """Whether the functions of a library's module give the same for the same arguments."""
    return isinstance(module, str) and module.partition(".")[0] in _PURE


def is_hidden(value: Any, name: str) -> bool:
    """Whether code has one of the functions that are looked for by their names under another name."""
    own: object = getattr(value, "__name__", "")
    return bool(own != name and own in _SENSITIVE)


def reads_from_outside(function: Any) -> str:
    """What a function reads that is not told by the values that it names; "" if there is nothing."""
    if function.__dict__.keys() - {"__wrapped__"}:
        return "attributes of a function"
    for code in _all_codes(function.__code__):
        for name in code.co_names:
            if name in _ATTRIBUTES or (name in _OUTSIDE and name not in function.__globals__):
                return str(name)
        for module in _imports(code):
            if module is None or not is_library_module(module) or not is_pure(module):
                return f"the module {module}"
    return ""


def _imports(code: Any) -> Iterator[str | None]:
    """The modules that code imports; None for relative imports."""
    raw = code.co_code
    more = 0
    for at in range(0, len(raw), 2):
        argument = more | raw[at + 1]
        if raw[at] == _IMPORT:
            level = raw[at - 4 : at - 2] if at >= 4 else b""  # noqa: PLR2004 - two instructions before: the level, and what is taken from it
            yield code.co_names[argument] if _is_zero(code, level) else None
        more = argument << 8 if raw[at] == _MORE else 0


def _is_zero(code: Any, instruction: bytes) -> bool:
    if len(instruction) < 2:  # noqa: PLR2004
        return False
    kind, argument = instruction
    return (kind == _CONSTANT and code.co_consts[argument] == 0) or (kind == _SMALL and argument == 0)
