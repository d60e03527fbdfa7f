"""Finds attributes that the program has set on Numba's types.

The compiler passes types to code that runs. So this code can read attributes of a type that the code does not name.
"""

from __future__ import annotations

import sys

from compcache.numba.fingerprints.examined import call_once
from compcache.numba.fingerprints.state import names_stored_by, set_on_library, state_of
from compcache.numba.registered.library import is_of_generators

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

__all__ = ["attributes_set_on_types"]

#: The attributes of types on which the program has set nothing: the class, and the names of the attributes.
_unchanged_shapes: set[tuple[Any, ...]] = set()


def attributes_set_on_types(names: Iterable[str] | None) -> list[tuple[str, str, Any]]:
    """Return the attributes that the program has set on Numba types and on their classes: those with these names, or all for None.

    A row consists of the name, the text of the type, and the value. Rows are sorted by name and text. The list is empty if Numba is not
    imported. Raise `Unidentifiable` if the code of a Numba module cannot be read at the moment.
    """
    module = sys.modules.get("numba.core.types.abstract")
    if module is None or "Type" not in vars(module):  # another thread may be importing the module
        return []
    chosen = None if names is None else frozenset(names)
    rows = [(name, str(type_), item) for type_ in call_once(_changed_types) for name, item in state_of(type_).items()]
    classes = [cls for cls in call_once(_type_classes, module) if chosen is None or not chosen.isdisjoint(vars(cls))]
    rows += [(name, cls.__qualname__, item) for cls in classes for name, item in set_on_library(cls, chosen).items()]
    if chosen is not None:
        rows = [(name, text, item) for name, text, item in rows if name in chosen]
    return sorted(rows, key=lambda row: row[:2])


def _changed_types() -> list[Any]:
    """Return the Numba types on which the program has set attributes. Add the attribute names of other types to `_unchanged_shapes`."""
    references = list(vars(sys.modules["numba.core.types.abstract"])["_typecache"])
    live = [type_ for reference in references if (type_ := reference()) is not None]
    shapes = {(type(type_), *type_.__dict__) for type_ in live}
    changed = set()
    for cls, *names in shapes - _unchanged_shapes:
        if is_of_generators(cls) and not names_stored_by(cls).issuperset(names):
            changed.add((cls, *names))
    _unchanged_shapes.update(shapes - changed)
    return [type_ for type_ in live if (type(type_), *type_.__dict__) in changed] if changed else []


def _type_classes(module: Any) -> list[type]:
    """Return the classes of Numba types that Numba defines."""
    classes: dict[type, None] = {module.Type: None}
    waiting = [module.Type]
    while waiting:
        new: list[type] = [cls for cls in type.__subclasses__(waiting.pop()) if cls not in classes]
        classes.update(dict.fromkeys(new))
        waiting += new
    return [cls for cls in classes if is_of_generators(cls)]
