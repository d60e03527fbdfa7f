"""Which code may run while functions are compiled without being asked again in another process: what it can read must be known by content.

Such code is Python's, unlike that of compiled functions: it may import, read files and variables of the environment, and get at
attributes by names that it computes.
"""

from __future__ import annotations

import sys

from compcache.numba.registered.code_reads import imported_reads, reads_of
from compcache.numba.registered.library import is_library_module
from compcache.numba.registered.purity import is_held, is_reviewed, outside
from compcache.numba.registered.reviewed import CODE_GENERATORS, LEADS_ANYWHERE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__all__ = ["is_hidden", "makes_names_of_text", "reads_attributes_by_name", "reads_from_outside"]

_Builtin = type(len)
_Code = type((lambda: 0).__code__)
_Function = type(lambda: 0)
_Module = type(sys)
#: Attributes by which Python's objects lead anywhere, and settings of Numba that are no part of keys.
_ATTRIBUTES = LEADS_ANYWHERE | {
    "NUMBA_NUM_THREADS", "__closure__", "__dict__", "__getattribute__", "__self__", "__subclasses__", "__wrapped__",
    "cell_contents", "config", "py_func",
}  # fmt: skip
#: Functions that read attributes by names given as text.
_BY_NAME = frozenset(("attrgetter", "delattr", "dir", "getattr", "hasattr", "methodcaller", "setattr"))
_BY_TEXT = frozenset(("eval", "exec", "globals"))
_SENSITIVE = _BY_NAME | _BY_TEXT


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


def is_hidden(value: Any, name: str) -> bool:
    """Whether code has one of the functions that are looked for by their names under another name."""
    own: object = getattr(value, "__name__", "")
    return bool(own != name and own in _SENSITIVE)


def reads_from_outside(function: Any) -> str:
    """What a function reads that is not told by the values that it names; "" if there is nothing."""
    if function.__dict__.keys() - {"__wrapped__"}:
        return "attributes of a function"
    namespace = function.__globals__
    for code in _all_codes(function.__code__):
        leading = _ATTRIBUTES.intersection(code.co_names)
        if leading:
            return min(leading)
        for chain in reads_of(code).chains:
            found = "" if chain[0] in _BY_TEXT else _outside_of(*_followed(chain, namespace))
            if found:
                return found
        for module, chains in imported_reads(code):
            found = _outside_of_import(module, chains)
            if found:
                return found
    return ""


def _outside_of_import(module: str, chains: tuple[tuple[str, ...], ...] | None) -> str:
    """What is outside of what code reads of a module that it imports."""
    if module.partition(".")[0] in CODE_GENERATORS:
        return "" if is_reviewed(module, "") else f"the module {module}"
    imported = sys.modules.get(module)
    if chains is None or imported is None or not is_library_module(module):
        return f"the module {module}"
    return next(filter(None, [_outside_of(*_followed(chain, vars(imported))) for chain in chains]), "")


def _followed(chain: tuple[str, ...], namespace: dict[str, Any]) -> tuple[Any, bool]:
    """What a chain leads to through modules, without what these make when they are asked, and whether it was followed to its end."""
    builtins = namespace.get("__builtins__", {})
    found = namespace.get(chain[0], (builtins if isinstance(builtins, dict) else vars(builtins)).get(chain[0]))
    for name in chain[1:]:
        if type(found) is not _Module:
            break
        if found.__name__.partition(".")[0] in CODE_GENERATORS:
            return None, True
        if name not in vars(found):
            return found, False
        found = vars(found)[name]
    return found, True


def _outside_of(value: Any, is_end: bool) -> str:
    kind = type(value)
    if kind is _Module:
        is_generator = value.__name__.partition(".")[0] in CODE_GENERATORS
        return "" if is_end and is_generator else f"the module {value.__name__}"
    if is_held(value):
        return "what is outside of the program"
    home = getattr(value, "__module__", None) if isinstance(value, (type, _Function, _Builtin)) else kind.__module__
    is_library = is_library_module(home) and str(home).partition(".")[0] not in CODE_GENERATORS
    return outside(value) if is_library else ""
