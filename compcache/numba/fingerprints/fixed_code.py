"""Records what the code of dispatchers was compiled from, for those that compile no more code.

A dispatcher with declared signatures keeps its code: globals that its function reads may change later, the code does not. For example,
galois creates hundreds of dispatchers from a few functions in this way, and sets their globals before each.
"""

from __future__ import annotations

import weakref

from compcache.numba.registered.refusals import Unidentifiable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Compiled", "fixed_code", "note_compiled", "note_running", "note_symbol"]


class Compiled:
    """One overload: the key under which it was compiled or found, and the digest of its source lines at that time.

    `registered` are the functions in its code that the compiler knows because they were registered, if they are known.
    """

    __slots__ = ("key", "lines", "registered")

    def __init__(self, key: str, lines: str, registered: tuple[Any, ...] = ()) -> None:
        self.key = key
        self.lines = lines
        self.registered = registered


_compiled: weakref.WeakKeyDictionary[Any, dict[Any, Compiled]] = weakref.WeakKeyDictionary()


def note_compiled(dispatcher: Any, args: tuple[Any, ...], compiled: Compiled) -> None:
    """Record what a dispatcher's code for these argument types was compiled from."""
    if dispatcher is not None:
        _compiled.setdefault(dispatcher, {})[args] = compiled


#: What each function of this process was compiled from, by the number in its symbols; None if that has no identity.
_by_symbol: dict[str, Compiled | None] = {}
#: The same for dispatchers that were already compiling when recording began.
_running: weakref.WeakKeyDictionary[Any, Compiled | None] = weakref.WeakKeyDictionary()


def note_symbol(number: str, compiled: Compiled | None) -> None:
    """Record what the function with this number in its symbols was compiled from; None if that has no identity."""
    _by_symbol[number] = compiled


def note_running(dispatcher: Any, compiled: Compiled | None) -> None:
    """Record what a dispatcher is being compiled from, without the types, if it is not recorded otherwise; None if that has no identity."""
    _running[dispatcher] = compiled


def fixed_code(dispatcher: Any, *, is_frozen: bool = False) -> list[Compiled] | None:
    """Return what all code of a dispatcher was compiled from, in the order in which overloads are tried; None if it may compile more, may
    be inlined, or is not fully known.

    `is_frozen`: it belongs to a ufunc that creates no more loops.

    Raises:
        Unidentifiable: it was compiled from values without identity, whatever they are now.
    """
    if not is_frozen and getattr(dispatcher, "_can_compile", True):
        return None
    if str(dispatcher.targetoptions.get("inline", "never")) != "never":
        return None  # Numba would inline the current version of the function
    known = _compiled.get(dispatcher, {})
    found = []
    for signature, result in dispatcher.overloads.items():
        one = known.get(tuple(getattr(signature, "args", signature))) or _compiled_now(dispatcher, result)
        if one is None:
            return None
        found.append(one)
    return found or None


def _compiled_now(dispatcher: Any, result: Any) -> Compiled | None:
    """Return what this process has compiled without a cache; None if that is not known."""
    number = getattr(getattr(result, "fndesc", None), "uid", None)
    if number in _by_symbol:
        found = _by_symbol[number]
    elif dispatcher in _running:
        running = _running[dispatcher]
        found = running and Compiled(f"{running.key} {result.signature}", running.lines)
    else:
        return None
    if found is None:
        raise Unidentifiable(f"{dispatcher.py_func.__qualname__} was compiled when it was declared, with values that have no identity")
    return found
