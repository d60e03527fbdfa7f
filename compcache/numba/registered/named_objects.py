"""Names the objects of the program whose addresses compiled code contains, and numbers classes of one name, as long as they live.

A name consists of a digest, and a number that distinguishes objects with the same digest. It belongs to one object as long as the object
lives. Keys contain the names of the objects that a function can reach, so a name in stored code refers to the object that the function
reaches in the process that loads the code.
"""

from __future__ import annotations

from _weakref import ref  # importing `weakref` is slow
from functools import partial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__all__ = ["name_object", "named_objects", "object_named", "present_name"]

#: The named objects that are alive, by name.
_objects: dict[str, ref[Any]] = {}
#: The latest name of each object, by its id. An array that the program has written to gets another name.
_latest_names: dict[int, str] = {}


def name_object(value: Any, digest: str) -> str:
    """Return the name of an object with this digest. The first call gives the object the name."""
    number = 0
    while True:
        name = f"{digest}-{number}"
        reference = _objects.get(name) or _objects.setdefault(name, ref(value, partial(_remove_name, name, id(value))))
        if reference() is value:
            _latest_names[id(value)] = name
            return name
        number += 1


def _remove_name(name: str, identity: int, reference: ref[Any]) -> None:
    """Remove the name of an object that was freed, unless another object has the name in the meantime."""
    if _objects.get(name) is reference:
        del _objects[name]
    if _latest_names.get(identity) == name:
        del _latest_names[identity]


def object_named(name: str) -> Any:
    """Return the object with a name, or None if this process has no such object."""
    reference = _objects.get(name)
    return reference() if reference is not None else None


def present_name(identity: int) -> str | None:
    """Return the latest name of the object with this id, or None if no living object with a name has this id."""
    return _latest_names.get(identity)


def named_objects(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the objects of a class, each with its latest name."""
    for name, reference in list(_objects.items()):
        value = reference()
        if isinstance(value, kind) and _latest_names.get(id(value)) == name:
            yield name, value
