"""Tests whether the class of a stand-in defines a name, without running code of the program's metaclasses."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["is_marked"]

_bases_of = type.__dict__["__mro__"].__get__
_members_of = type.__dict__["__dict__"].__get__


def is_marked(kind: Any, name: str) -> bool:
    """Return whether a class or one of its bases defines a name. Names that only the metaclass provides do not count."""
    if type(kind) is type:
        return hasattr(kind, name)
    return any(name in _members_of(base) for base in _bases_of(kind))
