"""Resolves Numba's slots for recursive calls before code is stored. Numba itself fills the slots at run time."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from compcache.numba.compilation.libraries import UNRESOLVED, library_of

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["UNRESOLVED", "MissingCallee", "link_recursive_callees", "resolve_recursion"]

_MAX_CALLEES = 1000
_DECLARED_RECURSION = re.compile(r'\n(@"\.numba\.unresolved\$([^"]+)") = external (?:\w+ )*global ptr\b.*')


class MissingCallee(Exception):  # noqa: N818 - a result, not a failure
    """Raised if the definition of a recursive callee cannot be linked into code. The message gives the reason."""


def link_recursive_callees(module: Any) -> Any:
    """Return a library's module with the definitions of all recursive callees.

    The result is the module itself, or a copy in which callees that inlining has removed are linked again. Raise `MissingCallee` if no
    library of this process defines one of the callees, or `_MAX_CALLEES` callees or more were removed.
    """
    for _ in range(_MAX_CALLEES):
        variables = [variable.name for variable in module.global_variables]
        callees = [name.removeprefix(UNRESOLVED) for name in variables if name.startswith(UNRESOLVED)]
        defined = {function.name for function in module.functions if callees and not function.is_declaration}
        missing = next((name for name in callees if _find_callee(name, defined) is None), None)
        if missing is None:
            return module
        module = module.clone()
        definition = _find_defining_module(missing).clone()
        definition.get_function(missing).linkage = "weak_odr"  # linkonce would be removed, because no code refers to it by name
        module.link_in(definition)
    raise MissingCallee(f"the function has {_MAX_CALLEES} recursive callees or more: split the function")


def _find_defining_module(name: str) -> Any:
    """Return the module that defines a function. Raise `MissingCallee` if no library of this process defines the function."""
    library = library_of(name)
    module = library._get_module_for_linking() if library is not None else None
    if module is not None and any(function.name == name and not function.is_declaration for function in module.functions):
        return module
    raise MissingCallee(f"the code of {name}, a recursive callee of the function, is no longer in this process: start the program again")


#: The parts of Numba's function names: the name with a number, the length of the compiler options, and the options with the remainder.
_OPTIONS = re.compile(r"(.*B\d+v\d+)B(\d+)(c8t.*)")


def _find_callee(name: str, defined: Collection[str]) -> str | None:
    """Return the function for a slot; None if undefined. The slot's name has the caller's options, which the callee may not have."""
    if name in defined:
        return name
    plain_name = _strip_options(name)
    return next((function for function in defined if _strip_options(function) == plain_name != function), None)


def _strip_options(name: str) -> str:
    """Return one of Numba's function names without the compiler options, whose length stands before them."""
    match = _OPTIONS.fullmatch(name)
    if match is None:
        return name
    before, length, options_and_rest = match.groups()
    return before + options_and_rest[int(length) :]


def resolve_recursion(text: str, defined: Collection[str]) -> str:
    """Return LLVM assembly in which the slots for recursive calls refer to the functions in `defined`. Other slots are left as they are."""

    def define_slot(match: re.Match[str]) -> str:
        """Return the definition of a slot as a constant, or its declaration if its callee is not defined."""
        declaration, slot, name = match[0], match[1], match[2]
        callee = _find_callee(name, defined)
        return declaration if callee is None else f'\n{slot} = internal constant ptr @"{callee}"'

    return _DECLARED_RECURSION.sub(define_slot, text)
