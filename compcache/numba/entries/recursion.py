"""Resolves Numba's slots for recursive calls before code is stored. Numba itself fills them at run time."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from compcache.numba.compilation.libraries import library_of

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["UNRESOLVED", "MissingCallee", "lacks_callee", "resolve_recursion", "with_recursive_callees"]

_MAX_CALLEES = 1000


UNRESOLVED = ".numba.unresolved$"


_DECLARED_RECURSION = re.compile(r'^(@"\.numba\.unresolved\$([^"]+)") = external (?:\w+ )*global ptr\b.*$', re.MULTILINE)


class MissingCallee(Exception):  # noqa: N818 - a result, not a failure
    """Raised if code would call a function that other processes lack. The message names the function."""


def with_recursive_callees(library: Any) -> Any:
    """Return the library's module with the definitions of all recursive callees. If inlining has removed a callee, it is linked in again.

    Raises:
        MissingCallee: no library of this process defines a callee.
    """
    module = library._final_module
    for _ in range(_MAX_CALLEES):
        defined = {f.name for f in module.functions if not f.is_declaration}
        slots = [v.name.removeprefix(UNRESOLVED) for v in module.global_variables if v.name.startswith(UNRESOLVED)]
        missing = [name for name in slots if _find_callee(name, defined) is None]
        if not missing:
            return module
        module = module.clone()
        callee = _find_defining_module(missing[0]).clone()
        callee.get_function(missing[0]).linkage = "weak_odr"  # linkonce would be removed, because no code refers to it by name
        module.link_in(callee)
    raise MissingCallee(f"the function has more than {_MAX_CALLEES} recursive callees")


def lacks_callee(library: Any) -> bool:
    """Return whether a library alone, in another process, would lack a recursive callee.

    Raises:
        MissingCallee: no library of this process defines a callee.
    """
    module = library._final_module
    return with_recursive_callees(library) is not module


def _find_defining_module(name: str) -> Any:
    """Return the module that defines a function.

    Raises:
        MissingCallee: no library of this process defines it.
    """
    library = library_of(name)
    module = library._get_module_for_linking() if library is not None else None
    if module is not None and any(f.name == name and not f.is_declaration for f in module.functions):
        return module
    raise MissingCallee(f"the function calls {name} recursively, but no library of this process defines {name} any more")


#: The parts of Numba's function names: a name with a number, the length of the compiler options, and the options with all that follows.
_OPTIONS = re.compile(r"(.*B\d+v\d+)B(\d+)(c8t.*)")


def _find_callee(name: str, defined: Collection[str]) -> str | None:
    """Return the name of the function that belongs to a slot, or None. A slot's name contains the caller's options, which may differ."""
    if name in defined:
        return name
    wanted = _without_options(name)
    return next((other for other in defined if _without_options(other) == wanted != other), None)


def _without_options(name: str) -> str:
    match = _OPTIONS.fullmatch(name)
    return name if match is None else match[1] + match[3][int(match[2]) :]


def resolve_recursion(text: str, defined: Collection[str]) -> str:
    """Define the variables through which recursive functions call themselves, as far as these functions are `defined`."""

    def define(match: re.Match[str]) -> str:
        callee = _find_callee(match[2], defined)
        return match[0] if callee is None else f'{match[1]} = internal constant ptr @"{callee}"'

    return _DECLARED_RECURSION.sub(define, text)
