"""Records which values functions read when this process compiled or loaded them.

A caller is linked with code that this process already has. If a function reads other values now, because a global has changed, the caller's
key would be computed from the present values, but the code would be compiled from the former values. Loaded code contains the code of its
callees. Without a cache, this process would have compiled these callees with the former values, so the values are kept, too.
"""

from __future__ import annotations

from _weakref import ref  # importing `weakref` is slow

from compcache.numba.fingerprints import RUN
from compcache.numba.fingerprints.former import keep_objects, keep_values
from compcache.numba.fingerprints.owners import hashed_reference
from compcache.numba.fingerprints.walk import CLASS
from compcache.numba.registered.library import full_name, name_of_class

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from compcache.numba.fingerprints.walk import FunctionPart
    from compcache.numba.lazy.entries import Record

    #: The full name of, and a weak reference to, each function, and a weak reference to its dispatcher (`owner_of`), or to the function
    #: itself if no dispatcher of the program compiles it.
    Functions = list[tuple[str, ref[Any], ref[Any]]]

__all__ = ["first_with_old_code", "functions_recorded_as", "is_latest", "named_functions", "record_code", "take_unread"]

#: The digests of each function by their kinds, the latest last. The reference to a function removes its row when the function is gone.
_digests: dict[ref[Any], dict[str, dict[bytes, None]]] = {}
#: Weak references to the classes to which code refers, by their modules and names.
_classes: dict[tuple[str, str], dict[ref[Any], None]] = {}
#: The records of code that was loaded without Numba, each with the functions in the code, whose linked overloads are not recorded yet.
_unread: list[tuple[Record, Functions]] = []


def record_code(parts: Iterable[FunctionPart], records: Iterable[Record] = ()) -> None:
    """Record the digests of functions whose code was just compiled or loaded, the newest last, and keep the values that they read.

    `records` are the records of the code, if it was loaded without Numba. `take_unread` returns them, unless there is only one part.
    """
    parts = list(parts)
    if len(parts) > 1:
        _unread.extend([(record, named_functions(parts)) for record in records])
    for part in parts:
        if part.kind == CLASS:
            known = _classes.setdefault(_name_of(part.function), {})
            known[ref(part.function, known.pop)] = None
        keep_values(part.function)
        if part.owners or part.kind == RUN:
            keep_objects(part.function, part.owners)
        digests = _digests.setdefault(ref(part.function, _digests.pop), {}).setdefault(part.kind, {})
        digests.pop(part.digest, None)  # a known digest moves to the end, because `is_latest` compares the last one
        digests[part.digest] = None


def first_with_old_code(parts: Iterable[FunctionPart]) -> str | None:
    """Return the name of the first function whose code in this process was compiled from other values; None if there is none.

    The result is the name of a class if code in this process refers to a former class by this name, and that class still exists. An image
    is mapped once, and code that has raised an exception keeps its class.
    """
    for part in parts:
        digests = _known_digests(part)
        if digests and list(digests) != [part.digest]:
            return full_name(part.function)
        if part.kind == CLASS and any(known() is not part.function for known in [*_classes.get(_name_of(part.function), ())]):
            return ".".join(_name_of(part.function))
    return None


def is_latest(part: FunctionPart) -> bool:
    """Return whether the latest code of a function was compiled from the same values. Return True if the function has no code yet."""
    digests = _known_digests(part)
    return not digests or next(reversed(digests)) == part.digest


def functions_recorded_as(kind: str, parts: Iterable[FunctionPart]) -> list[Any]:
    """Return the functions of these parts that have recorded digests of a kind."""
    return [part.function for part in parts if kind in _digests.get(ref(part.function), {})]


def named_functions(parts: Iterable[FunctionPart]) -> Functions:
    """Return the functions of these parts, in order. A function with several dispatchers has several rows."""
    functions: dict[Any, dict[ref[Any], None]] = {}
    for part in parts:
        functions.setdefault(part.function, {}).update(dict.fromkeys(part.owners))
    return [
        (f"{function.__module__}.{function.__qualname__}", hashed_reference(function), owner)
        for function, owners in functions.items()
        for owner in owners or [hashed_reference(function)]
    ]


def take_unread() -> list[tuple[Record, Functions]]:
    """Return the records of all code that was loaded without Numba since the last call, each with the functions in the code."""
    rows = _unread.copy()
    _unread.clear()
    return rows


def _name_of(cls: type) -> tuple[str, str]:
    """Return the module of a class, and the name by which code refers to the class."""
    return cls.__module__, name_of_class(cls) or f"{cls.__qualname__} at {id(cls)}"


def _known_digests(part: FunctionPart) -> dict[bytes, None]:
    """Return the digests that are recorded for a function, of the part's kind, the latest last; empty if there are none."""
    return _digests.get(ref(part.function), {}).get(part.kind, {})
