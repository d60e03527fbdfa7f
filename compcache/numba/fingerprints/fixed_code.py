"""Records what the code of dispatchers was compiled from, for those that compile nothing more.

A dispatcher that is declared with signatures has its code from then on: the globals that its function reads may change,
its code does not. galois makes hundreds of dispatchers from a few functions in this way, whose globals it sets before.
"""

from __future__ import annotations

import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Compiled", "fixed_code", "note_compiled"]


class Compiled:
    """One overload: the key that it was compiled or found under, and the digest of its source lines then.

    `registered` are the functions in its code that the compiler knows because they were registered, where that is known.
    """

    __slots__ = ("key", "lines", "registered")

    def __init__(self, key: str, lines: str, registered: tuple[Any, ...] = ()) -> None:
        self.key = key
        self.lines = lines
        self.registered = registered


_compiled: weakref.WeakKeyDictionary[Any, dict[Any, Compiled]] = weakref.WeakKeyDictionary()


def note_compiled(dispatcher: Any, args: tuple[Any, ...], compiled: Compiled) -> None:
    """Record what a dispatcher's code for these types of arguments was made of."""
    if dispatcher is not None:
        _compiled.setdefault(dispatcher, {})[args] = compiled


def fixed_code(dispatcher: Any, *, is_frozen: bool = False) -> list[Compiled] | None:
    """What all code of a dispatcher was made of; None if it may compile more, may be inlined, or not all of it is known.

    `is_frozen`: it belongs to a ufunc that makes no more loops.
    """
    if not is_frozen and getattr(dispatcher, "_can_compile", True):
        return None
    if str(dispatcher.targetoptions.get("inline", "never")) != "never":
        return None  # Numba would inline what the function is now
    known = _compiled.get(dispatcher, {})
    overloads = {tuple(getattr(signature, "args", signature)) for signature in dispatcher.overloads}
    if not overloads or overloads - known.keys():
        return None
    return sorted([known[args] for args in overloads], key=lambda one: (one.key, one.lines))
