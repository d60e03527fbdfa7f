"""Addresses of this process in compiled code, as the functions of other packages that they are.

Numba keeps an address that it took from ctypes or from a Cython module in a variable named after it. Functions that Cython
modules offer to others (SciPy's special functions, BLAS and LAPACK) have names in every process. So have functions of the C
library that Numba calls by names of its own.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MATHEMATICS", "PREFIX", "known_functions", "without_addresses"]

#: What precedes the address in the names of Numba's variables.
PREFIX = "numba.dynamic.globals."
_INITIALIZER = re.compile(rf'^(@"?{re.escape(PREFIX)}[0-9a-f.]+"? = .*?global ptr) inttoptr \(i64 -?\d+ to ptr\)', re.MULTILINE)


def known_functions(names: Iterable[str]) -> dict[str, tuple[str, str, str]]:
    """For those of these variables that are known functions: module, name, and type as Cython writes it."""
    # Linking adds a number to names that occur twice.
    wanted = {name: int(name.removeprefix(PREFIX).partition(".")[0], 16) for name in names}
    if not wanted:
        return {}
    offered = _offered()
    return {name: offered[address] for name, address in sorted(wanted.items()) if address in offered}


def _offered() -> dict[int, tuple[str, str, str]]:
    """The functions that the Cython modules of this process offer to others, by address."""
    import ctypes

    api = ctypes.pythonapi
    name_of, pointer_of = api.PyCapsule_GetName, api.PyCapsule_GetPointer
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    found: dict[int, tuple[str, str, str]] = {}
    for module_name, module in sorted(sys.modules.items()):
        offered: Any = getattr(module, "__dict__", {}).get("__pyx_capi__")
        for name, capsule in sorted(offered.items()) if isinstance(offered, dict) else ():
            type_ = name_of(capsule)
            if "(" in type_.decode():  # not a variable
                found.setdefault(pointer_of(capsule, type_), (module_name, name, type_.decode()))
    return found


def without_addresses(text: str, functions: Iterable[str] = ()) -> str:
    """Assembly in which the variables hold nothing. What is loaded from those of known functions is never null: Numba asks its own
    objects where it is.
    """
    for name in functions:
        text = re.sub(rf'(load ptr, ptr @"?{re.escape(name)}"?, align 8)$', r"\1, !nonnull !{}", text, flags=re.MULTILINE)
    return _INITIALIZER.sub(r"\1 null", text)


def _definition(name: str, function: str) -> str:
    type_ = "float" if name.endswith("f") else "double"
    return f"""\
declare {type_} @{function}({type_})
define {type_} @{name}({type_} %x) alwaysinline {{
  %value = call {type_} @{function}({type_} %x)
  ret {type_} %value
}}"""


_NAMES = {"numba_gamma": "tgamma", "numba_gammaf": "tgammaf", "numba_lgamma": "lgamma", "numba_lgammaf": "lgammaf"}
#: Assembly that defines Numba's names.
MATHEMATICS = "\n".join(_definition(*pair) for pair in _NAMES.items())
