"""What counts by its name: code of Numba, NumPy and the standard library, whose versions are part of every key."""

from __future__ import annotations

import functools
import os
import sys

__all__ = ["is_library_module"]

_LIBRARIES = frozenset(("numba", "numpy", "llvmlite", "builtins"))


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
    """Whether a module with a name of the standard library is that one, and not a file of the user's."""
    origin = getattr(getattr(sys.modules.get(top), "__spec__", None), "origin", None)
    if not isinstance(origin, str):
        return top in sys.builtin_module_names
    return origin in ("built-in", "frozen") or (
        origin.startswith(os.path.dirname(os.__file__) + os.sep) and "site-packages" not in origin
    )
