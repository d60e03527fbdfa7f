"""Resolves Numba's slots for recursive calls, which it fills at run time, before code is stored."""

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


class MissingCallee(Exception):  # noqa: N818 - it is an answer, not a failure
    """Raised when code would call a function that no other process has; the message names it."""


def with_recursive_callees(library: Any) -> Any:
    """Return the library's module, with the callees of Numba's slots for recursion linked in if inlining left them out.

    Raises:
        MissingCallee: no library of this process defines such a callee.
    """
    module = library._final_module
    for _ in range(_MAX_CALLEES):
        defined = {f.name for f in module.functions if not f.is_declaration}
        slots = [v.name.removeprefix(UNRESOLVED) for v in module.global_variables if v.name.startswith(UNRESOLVED)]
        missing = [name for name in slots if _callee(name, defined) is None]
        if not missing:
            return module
        module = module.clone()
        callee = _module_defining(missing[0]).clone()
        callee.get_function(missing[0]).linkage = "weak_odr"  # linkonce would be dropped: nothing refers to it by name
        module.link_in(callee)
    raise MissingCallee("it has too many recursive callees")


def lacks_callee(library: Any) -> bool:
    """Return whether a library alone, in another process, would lack a callee."""
    module = library._final_module
    return with_recursive_callees(library) is not module


def _module_defining(name: str) -> Any:
    library = library_of(name)
    module = library._get_module_for_linking() if library is not None else None
    if module is not None and any(f.name == name and not f.is_declaration for f in module.functions):
        return module
    raise MissingCallee(f"it calls {name} through Numba's slots for recursion, and no library defines it any more")


#: In the names of Numba's functions: the number of a function, and the options that it was compiled with, after their length.
_OPTIONS = re.compile(r"(.*B\d+v\d+)B(\d+)(c8t.*)")


def _callee(name: str, defined: Collection[str]) -> str | None:
    """Return the function of a slot. Numba names it with the options of its caller, which may differ from its own."""
    if name in defined:
        return name
    wanted = _without_options(name)
    return next((other for other in defined if _without_options(other) == wanted != other), None)


def _without_options(name: str) -> str:
    match = _OPTIONS.fullmatch(name)
    return name if match is None else match[1] + match[3][int(match[2]) :]


def resolve_recursion(text: str, defined: Collection[str]) -> str:
    """Define the variables through which recursive functions call themselves."""

    def define(match: re.Match[str]) -> str:
        callee = _callee(match[2], defined)
        return match[0] if callee is None else f'{match[1]} = internal constant ptr @"{callee}"'

    return _DECLARED_RECURSION.sub(define, text)
