"""Resolves Numba's slots for recursive calls, which it fills at run time, before code is stored."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from compcache.numba.compilation.libraries import library_of

if TYPE_CHECKING:
    from collections.abc import Container

__all__ = ["UNRESOLVED", "MissingCallee", "lacks_callee", "resolve_recursion", "with_recursive_callees"]

_MAX_CALLEES = 1000


UNRESOLVED = ".numba.unresolved$"


_DECLARED_RECURSION = re.compile(
    r'^(@"\.numba\.unresolved\$([^"]+)") = external (?:\w+ )*global ptr\b.*$', re.MULTILINE
)


class MissingCallee(Exception):  # noqa: N818 - it is an answer, not a failure
    """Raised when code would call a function that no other process has; the message names it."""


def with_recursive_callees(library: Any) -> Any:
    """The library's module, with the callees of Numba's slots for recursion linked in if inlining left them out.

    Raises:
        MissingCallee: no library of this process defines such a callee.
    """
    module = library._final_module
    for _ in range(_MAX_CALLEES):
        defined = {f.name for f in module.functions if not f.is_declaration}
        slots = [
            v.name.removeprefix(UNRESOLVED) for v in module.global_variables if v.name.startswith(UNRESOLVED)
        ]
        missing = [name for name in slots if name not in defined]
        if not missing:
            return module
        module = module.clone()
        callee = _module_defining(missing[0]).clone()
        callee.get_function(missing[0]).linkage = "weak_odr"  # linkonce would be dropped: nothing refers to it by name
        module.link_in(callee)
    raise MissingCallee("it has too many recursive callees")


def lacks_callee(library: Any) -> bool:
    """Whether a library alone, in another process, would lack a callee."""
    module = library._final_module
    return with_recursive_callees(library) is not module


def _module_defining(name: str) -> Any:
    library = library_of(name)
    module = library._get_module_for_linking() if library is not None else None
    if module is not None and any(f.name == name and not f.is_declaration for f in module.functions):
        return module
    raise MissingCallee(
        f"it calls {name} through Numba's slots for recursion, and no library defines it any more"
    )


def resolve_recursion(text: str, defined: Container[str]) -> str:
    """Define the variables through which recursive functions call themselves."""

    def define(match: re.Match[str]) -> str:
        if match[2] not in defined:
            return match[0]
        return f'{match[1]} = internal constant ptr @"{match[2]}"'

    return _DECLARED_RECURSION.sub(define, text)
