"""Tests the classes of objects without running code of the program, and without importing Numba for a stand-in; and replaces stand-ins."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["is_marked", "is_module", "original"]

_Module = type(sys)
# The descriptors of `type` itself, because reading `cls.__mro__` would run `__getattribute__` of a metaclass.
_bases_of = type.__dict__["__mro__"].__get__
_members_of = type.__dict__["__dict__"].__get__


def is_marked(kind: Any, name: str) -> bool:
    """Return whether a class or one of its bases defines a name. Names that only the metaclass provides do not count."""
    if type(kind) is type:
        return hasattr(kind, name)
    return any(name in _members_of(base) for base in _bases_of(kind))


def is_module(value: Any) -> bool:
    """Return whether a value is a module. `isinstance` would read `__class__` of a stand-in, which imports Numba."""
    return issubclass(type(value), _Module)


def original(value: Any) -> Any:
    """Return Numba's own object for a stand-in with a name in Numba, after importing Numba if necessary. Return other values unchanged."""
    return type(value)._compcache_original(value) if is_marked(type(value), "_compcache_original") else value
