"""Finds what a program has set on Numba's types. The compiler passes types to code that runs, so that this code can read what is set on a
type that it does not name.
"""

from __future__ import annotations

import sys

from compcache.numba.fingerprints.examined import remembered
from compcache.numba.fingerprints.state import is_of_generators, names_stored_by, set_on_library, state_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

__all__ = ["set_on_types"]


#: The attributes of types of Numba that have none of the program: the class, and the names.
_plain: set[tuple[Any, ...]] = set()


def set_on_types(names: Iterable[str] | None) -> list[tuple[str, str, Any]]:
    """Return what the program has set under these names (None: under any name) on types of Numba and on their classes: the name, the text
    of the type, and the value, in order. Nothing is set if Numba is not imported.
    """
    module = sys.modules.get("numba.core.types.abstract")
    if "Type" not in vars(module or object):
        return []
    wanted = None if names is None else frozenset(names)
    found = [(name, str(one), item) for one in remembered(_types) for name, item in state_of(one).items()]
    found += [(name, cls.__qualname__, item) for cls in _classes(module) for name, item in _members(cls, wanted)]
    return sorted([row for row in found if wanted is None or row[0] in wanted], key=lambda row: row[:2])


def _types() -> list[Any]:
    """Return the types of Numba on which the program has set attributes."""
    live = [reference() for reference in list(vars(sys.modules["numba.core.types.abstract"])["_typecache"])]
    shapes = {(type(one), *one.__dict__) for one in live if one is not None}
    new = {shape for shape in shapes - _plain if is_of_generators(shape[0]) and not names_stored_by(shape[0]).issuperset(shape[1:])}
    _plain.update(shapes - new)
    return [one for one in live if (type(one), *getattr(one, "__dict__", ())) in new] if new else []


def _classes(module: Any) -> list[type]:
    found: dict[type, None] = {module.Type: None}
    waiting = [module.Type]
    while waiting:
        new: list[type] = [cls for cls in type.__subclasses__(waiting.pop()) if cls not in found]
        found.update(dict.fromkeys(new))
        waiting += new
    return [cls for cls in found if is_of_generators(cls)]


def _members(cls: type, names: frozenset[str] | None) -> Iterable[tuple[str, Any]]:
    if names is not None and names.isdisjoint(vars(cls)):
        return ()
    return set_on_library(cls, names).items()
