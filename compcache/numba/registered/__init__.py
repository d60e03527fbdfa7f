"""Finds the registrations of programs with Numba's compiler, and identifies them by content, without Numba.

Other files identify the functions and arrays that programs pass by address, and the installed packages that register with Numba. This file
holds the implementations that programs have registered for their own functions with stand-ins for Numba.
"""

from __future__ import annotations

from _weakref import ref  # importing `weakref` is slow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Registrations", "copied_from", "record_copy", "record_jitable", "record_overload", "registered_for"]


class Registrations:
    """The registrations for a plain function.

    Attributes:
        function: the function.
        overloads: its overloads, each with its options.
        options_of_jitable: the options of each registration that allows compiled code to call the function.
    """

    __slots__ = ("function", "options_of_jitable", "overloads")

    def __init__(self, function: Any) -> None:
        self.function = function  # a reference, so that no other function gets its id
        self.overloads: list[tuple[Any, dict[str, Any]]] = []
        self.options_of_jitable: list[dict[str, Any]] = []


_registrations: dict[int, Registrations] = {}
#: Copies of functions by their ids, each with the function. A copy that is gone removes its row.
_copies: dict[int, tuple[ref[Any], Any]] = {}


def _registrations_of(function: Any) -> Registrations:
    """Return the registrations of a function. The first call creates them."""
    return _registrations.setdefault(id(function), Registrations(function))


def record_overload(function: Any, implementation: Any, options: dict[str, Any]) -> None:
    """Record an overload of a plain function."""
    _registrations_of(function).overloads.append((implementation, options))


def record_jitable(function: Any, options: dict[str, Any]) -> None:
    """Record that compiled code may call a plain function, with the options of this registration."""
    _registrations_of(function).options_of_jitable.append(options)


def registered_for(function: Any) -> Registrations | None:
    """Return the registrations for a plain function, or for the function that it is a copy of; None if there are none."""
    return _registrations.get(id(copied_from(function)))


def record_copy(function: Any, copy: Any) -> None:
    """Record that `copy` is a copy of a plain function, so that `registered_for` returns the function's registrations for the copy, too."""
    key = id(copy)
    _copies[key] = ref(copy, lambda _: _copies.pop(key, None)), copied_from(function)


def copied_from(value: Any) -> Any:
    """Return the function that an object is a copy of, or the object itself if it is not a recorded copy."""
    row = _copies.get(id(value))
    return value if row is None else row[1]
