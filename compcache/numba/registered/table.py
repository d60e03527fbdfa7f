"""The implementations that programs have registered for their own functions before Numba was imported, or through its stand-in."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Registered", "note_jitable", "note_overload", "registered_for"]


class Registered:
    """What is registered for a plain function: overloads with their options, and whether compiled code may call the function
    (`options_of_jitable`).
    """

    __slots__ = ("function", "options_of_jitable", "overloads")

    def __init__(self, function: Any) -> None:
        self.function = function  # keeps the function alive as long as its id is used here
        self.overloads: list[tuple[Any, dict[str, Any]]] = []
        self.options_of_jitable: list[dict[str, Any]] = []


_table: dict[int, Registered] = {}


def _row(function: Any) -> Registered:
    return _table.setdefault(id(function), Registered(function))


def note_overload(function: Any, implementation: Any, options: dict[str, Any]) -> None:
    """Record an overload of a plain function."""
    _row(function).overloads.append((implementation, options))


def note_jitable(function: Any, options: dict[str, Any]) -> None:
    """Record that compiled code may call a plain function."""
    _row(function).options_of_jitable.append(options)


def registered_for(function: Any) -> Registered | None:
    """Return what is registered for a plain function, or None."""
    return _table.get(id(function))
