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
from compcache.numba.registered.library import full_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from compcache.numba.fingerprints.walk import FunctionPart
    from compcache.numba.lazy.entries import Record

    #: The full name of, and a weak reference to, each function, and a weak reference to its dispatcher (`owner_of`), or to the function
    #: itself if no dispatcher of the program compiles it.
    Functions = list[tuple[str, ref[Any], ref[Any]]]
    #: What code was compiled from: the digest of the function's part, and weak references to the functions to which the function referred.
    Row = tuple[bytes, tuple[ref[Any], ...]]

__all__ = ["changed_value", "functions_recorded_as", "is_latest", "named_functions", "old_code_reason", "record_code", "take_unread"]

#: The rows of each function by their kinds, the latest last. The reference to a function removes its rows when the function is gone.
_rows: dict[ref[Any], dict[str, dict[Row, None]]] = {}
#: The records of code that was loaded without Numba, each with the functions in the code, whose linked overloads are not recorded yet.
_unread: list[tuple[Record, Functions]] = []


def record_code(parts: Iterable[FunctionPart], records: Iterable[Record] = ()) -> None:
    """Record the parts of functions whose code was just compiled or loaded, the newest last, and keep the values that they read.

    `records` are the records of the code, if it was loaded without Numba. `take_unread` returns them, unless there is only one part.
    """
    parts = list(parts)
    if len(parts) > 1:
        _unread.extend([(record, named_functions(parts)) for record in records])
    for part in parts:
        keep_values(part.function)
        if part.owners or part.kind == RUN:
            keep_objects(part.function, part.owners)
        rows = _rows.setdefault(ref(part.function, _rows.pop), {}).setdefault(part.kind, {})
        if not rows or not _is_current([*rows][-1], part, parts):
            row = part.digest, tuple(map(hashed_reference, part.callees))
            rows.pop(row, None)  # a known row moves to the end, because `is_latest` compares the last one
            rows[row] = None


def changed_value(function: Any) -> str:
    """Return the reason for not using the cache if this process has code of a function that was compiled from other values."""
    name = full_name(function)
    return f"{name} reads a value that has changed since {name} was compiled: pass this value as an argument"


def old_code_reason(parts: Sequence[FunctionPart], first: int = 0) -> str:
    """Return `changed_value` for the first function whose code in this process was compiled from other values; "" if there is none.

    The parts before `first` are not examined, but other functions may refer to them.
    """
    for part in parts[first:]:
        if not all(_is_current(row, part, parts) for row in _rows_of(part.function, part.kind)):
            return changed_value(part.function)
    return ""


def is_latest(parts: Sequence[FunctionPart]) -> bool:
    """Return whether the latest code of the first function was compiled from the same values, or the function has no code yet."""
    return all(_is_current(row, parts[0], parts) for row in _rows_of(parts[0].function, parts[0].kind)[-1:])


def functions_recorded_as(kind: str, parts: Iterable[FunctionPart]) -> list[Any]:
    """Return the functions of these parts that have recorded digests of a kind."""
    return [part.function for part in parts if _rows_of(part.function, kind)]


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


def _rows_of(function: Any, kind: str) -> list[Row]:
    """Return the rows of a kind that are recorded for a function, the latest last; empty if there are none."""
    return [*_rows.get(ref(function), {}).get(kind, ())]


def _is_current(row: Row, part: FunctionPart, parts: Iterable[FunctionPart]) -> bool:
    """Return whether code with a row was compiled from what the function of a part reads now.

    A function that was defined again counts as changed if its values or callees differ, or nothing is known about the former function. A
    callee that is the same function is not compared. `parts` are those of all functions that can be reached.
    """
    pairs, compared = [(row, part)], set()
    for (digest, callees), now in pairs:
        if digest != now.digest or len(callees) != len(now.callees):
            return False
        for reference, callee in zip(callees, now.callees, strict=True):
            former = reference()
            if former is callee or (id(former), id(callee)) in compared:
                continue
            compared.add((id(former), id(callee)))
            rows = () if former is None else _rows_of(former, part.kind)
            found = [(row, other) for row in rows for other in parts if other.function is callee and other.kind == part.kind]
            if not found:
                return False
            pairs.extend(found)
    return True
