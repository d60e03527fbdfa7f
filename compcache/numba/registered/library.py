"""Which code follows from versions: that of Python, NumPy, llvmlite and Numba; and what is found under its name."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["find_by_name", "is_library", "is_of_library"]

_LIBRARIES = frozenset(("builtins", "compcache", "llvmlite", "numba", "numpy"))
_STANDARD = os.path.dirname(os.__file__) + os.sep
_Module = type(sys)


def find_by_name(value: Any) -> bool:
    """Whether an object's module holds it under its own name."""
    owner = getattr(value, "__self__", None)
    module = getattr(value, "__module__", None) or (owner.__name__ if type(owner) is _Module else None)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return False
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is value


def is_library(module: object) -> bool:
    """Whether a module's content is covered by the versions of Python, NumPy and Numba."""
    if not isinstance(module, str) or module.startswith("numba.tests"):
        return False
    top = module.partition(".")[0]
    if top in _LIBRARIES:
        return True
    if top not in sys.stdlib_module_names or top == "__main__":
        return False
    origin = getattr(getattr(sys.modules.get(top), "__spec__", None), "origin", None)
    return origin in (None, "built-in", "frozen") or (origin.startswith(_STANDARD) and "site-packages" not in origin)


def is_of_library(function: Any) -> bool:
    """Whether a function's code belongs to a library, whatever attributes `functools.wraps` has set."""
    module = function.__globals__.get("__name__")
    if not is_library(module) or "<locals>" in function.__code__.co_qualname:
        return False
    home = getattr(sys.modules.get(module.partition(".")[0]), "__file__", None) or ""
    path = function.__code__.co_filename
    if os.path.basename(home) == "__init__.py":
        return bool(path.startswith(os.path.dirname(home) + os.sep))
    return bool(path == home or path.startswith("<frozen"))
