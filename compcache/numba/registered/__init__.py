"""Knows what programs register with Numba's compiler.

Finds the registrations for functions, and identifies them without Numba. Also identifies functions and arrays that programs pass by
address. This file holds the implementations that programs have registered for their own functions with stand-ins for Numba.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Registrations", "record_jitable", "record_overload", "registered_for"]


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


_table: dict[int, Registrations] = {}


def _registrations_of(function: Any) -> Registrations:
    """Return the registrations of a function. The first call creates them."""
    return _table.setdefault(id(function), Registrations(function))


def record_overload(function: Any, implementation: Any, options: dict[str, Any]) -> None:
    """Record an overload of a plain function."""
    _registrations_of(function).overloads.append((implementation, options))


def record_jitable(function: Any, options: dict[str, Any]) -> None:
    """Record that compiled code may call a plain function, with the options of this registration."""
    _registrations_of(function).options_of_jitable.append(options)


def registered_for(function: Any) -> Registrations | None:
    """Return the registrations for a plain function, or None if the function has no registrations."""
    return _table.get(id(function))
