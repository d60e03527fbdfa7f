"""Tells which code is not identified by content: Numba, NumPy and the standard library by name, since their versions are in every
key.
"""

from __future__ import annotations

import functools
import os
import sys
from types import FunctionType
from typing import Any

__all__ = ["is_library_function", "is_library_module", "is_made_by_library", "package_of"]

#: This package is among them: its decorators stand in modules for Numba's.
_LIBRARIES = frozenset(("builtins", "compcache", "llvmlite", "numba", "numpy"))
_OWN_TESTS = "numba.tests"


def is_library_module(name: object) -> bool:
    """Whether a module's content is covered by the versions in every key."""
    if not isinstance(name, str) or name.startswith(_OWN_TESTS):
        return False
    top = name.partition(".")[0]
    if top in _LIBRARIES:
        return True
    return top in sys.stdlib_module_names and top != "__main__" and _is_pythons_own(top)


@functools.cache
def _is_pythons_own(top: str) -> bool:
    """Whether a module with a name of the standard library is really from there, and not a user's file."""
    origin = getattr(getattr(sys.modules.get(top), "__spec__", None), "origin", None)
    if not isinstance(origin, str):
        return top in sys.builtin_module_names
    return origin in ("built-in", "frozen") or (origin.startswith(os.path.dirname(os.__file__) + os.sep) and "site-packages" not in origin)


def is_made_by_library(function: Any) -> bool:
    """Whether the code of a function belongs to a library, closures included.

    Decided by its globals and the file of its code: `functools.wraps` replaces the other attributes of a user's
    function.
    """
    if not isinstance(function, FunctionType):
        return is_library_module(getattr(function, "__module__", None))
    module = function.__globals__.get("__name__")
    return isinstance(module, str) and _is_library_code(module, function.__code__.co_filename)


def is_library_function(function: Any) -> bool:
    """Whether a function belongs to a library and is identified by name: its closure holds no user code."""
    return is_made_by_library(function) and "<locals>" not in function.__code__.co_qualname


@functools.cache
def _is_library_code(module: str, path: str) -> bool:
    return is_library_module(module) and _is_library_path(path)


@functools.cache
def _is_library_path(path: str) -> bool:
    if path.startswith("<"):  # compiled from text by the module whose namespace it has
        return True
    roots = [os.path.dirname(os.__file__)]
    for name in _LIBRARIES - {"builtins"}:
        origin = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
        if origin:
            roots.append(os.path.dirname(origin))
    if getattr(sys, "frozen", False) and not os.path.isabs(path):  # PyInstaller's code has names within the program's directory
        path = os.path.join(roots[0], path)
    inside = [root for root in roots if path.startswith(root + os.sep)]
    return len(inside) > 1 or (bool(inside) and (inside[0] != roots[0] or "site-packages" not in path))


def package_of(function: Any) -> str:
    """The top-level package of a function; for Numba's closure around a user's function, of that one."""
    if is_made_by_library(function):
        inner = [cell.cell_contents for cell in function.__closure__ or ()]
        function = next((item for item in inner if hasattr(item, "__globals__") and not is_made_by_library(item)), function)
    return str(function.__globals__.get("__name__", "")).partition(".")[0]
