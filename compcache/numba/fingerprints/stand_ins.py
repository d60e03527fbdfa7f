"""Feeds the stand-ins for Numba's objects while Numba is not imported, with what identifies Numba's own object.

If Numba is imported later, its own objects replace the stand-ins. `note_real` remembers which, so that keys of functions do not change.
"""

from __future__ import annotations

import sys

from compcache.numba.fingerprints.state import can_hold, is_changed, is_of_generators
from compcache.numba.registered.marks import is_marked
from compcache.numba.registered.refusals import NotLazy
from compcache.numba.registered.reviewed import CODE_GENERATORS
from compcache.numba.registered.type_texts import text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from compcache.numba.fingerprints.walk import Walk

__all__ = ["handler_without_numba", "is_declared_as", "is_generators_module", "is_object_mode", "jitted", "note_real", "stand_for_prange"]

_Module = type(sys)
#: The lazy objects that Numba's objects have replaced, by the id of the latter.
_made: dict[int, tuple[Any, Any]] = {}
#: Classes that are treated as `numba.prange`.
_PRANGE: set[Any] = set()
#: Numba's contexts. Blocks in them run differently, with the globals of that moment.
_CONTEXTS = ("objmode", "parallel_chunksize")
_OBJECT_MODE = "objmode"


def note_real(real: Any, lazy: Any) -> None:
    """Record that an object of Numba's replaces a lazy one in globals, and has its content."""
    if is_marked(type(lazy), "_compcache_content"):
        _made[id(real)] = real, lazy


def stand_for_prange(cls: Any) -> None:
    """Treat a class as `numba.prange`."""
    _PRANGE.add(cls)


def jitted(value: Any) -> Any:
    """Return the jitted function that a value is, or from which Numba created it; None for other values."""
    lazy = value if is_marked(type(value), "_compcache_is_declaration") else _made.get(id(value), (None, None))[1]
    return lazy if is_marked(type(lazy), "_compcache_is_declaration") else None


def is_declared_as(value: Any, function: Any) -> bool:
    """Return whether a function that was compiled on declaration reads itself: its name was not set at that time."""
    return is_marked(type(value), "_compcache_is_declaration") and bool(type(value)._compcache_is_declaration(value, function))


def is_generators_module(value: Any) -> bool:
    """Return whether a module belongs to a library that generates code: its content follows from the version, and is not examined."""
    return issubclass(type(value), _Module) and value.__name__.partition(".")[0] in CODE_GENERATORS


def is_object_mode(value: Any) -> bool:
    """Return whether this is `numba.objmode` or its stand-in."""
    return _context_of(value) == _OBJECT_MODE


def _context_of(value: Any) -> str | None:
    kind = type(value)
    if is_marked(kind, "_compcache_context"):
        name: str | None = kind._compcache_context(value)
        return name
    if kind.__module__ != "numba.core.withcontexts":
        return None
    return next((name for name in _CONTEXTS if getattr(sys.modules["numba"], name, None) is value), None)


def handler_without_numba(value: Any) -> Callable[[Walk, Any, str], None] | None:
    """Return the handler for an object of Numba's or its stand-in; None for other values."""
    kind = type(value)
    if is_marked(kind, "_compcache_content"):
        return _of_stand_in
    if id(value) in _made:
        return _of_made
    if issubclass(kind, type):
        is_prange = value in _PRANGE or (value.__qualname__ == "prange" and value.__module__ == "numba.misc.special")
        return _of_prange if is_prange else None
    return _of_generators if is_of_generators(kind) else None


def _of_stand_in(walk: Walk, value: Any, where: str) -> None:
    try:
        type(value)._compcache_content(value, walk)
        _attributes(walk, value, where)
    except NotLazy:
        if not walk.is_only_named():
            raise
        walk.unknown(value, where)


def _attributes(walk: Walk, value: Any, where: str) -> None:
    """Let running code find what the program has set on an object of Numba."""
    if walk.mode == "run" and can_hold(value):
        walk.reach().add(walk, value, where)


def _of_made(walk: Walk, value: Any, where: str) -> None:
    _of_stand_in(walk, _made[id(value)][1], where)


def _of_prange(walk: Walk, value: Any, where: str) -> None:
    walk.token("prange")
    if walk.mode == "run" and is_changed(value):
        walk.reach().add(walk, value, where)


def _of_generators(walk: Walk, value: Any, where: str) -> None:
    """Feed an object of Numba itself, which another process may know without Numba."""
    context, kind = _context_of(value), type(value)
    text = text_of(value) if context is None else None
    if context is not None:
        walk.token("context", "numba", context)
    elif text is not None:
        walk.token("numba type", text)
        _attributes(walk, value, where)
    elif kind.__module__.startswith("llvmlite.ir"):
        walk.token("llvm", kind.__qualname__, value)
    else:
        _of_numba(walk, value, where)


def _of_numba(walk: Walk, value: Any, where: str) -> None:
    from compcache.numba.fingerprints.numba_values import HAVE_STAND_INS, handlers

    kind = type(value)
    rows = handlers() if kind.__module__.startswith("numba.") else ()
    handler = next((handler for classes, handler in rows if issubclass(kind, classes)), None)
    try:
        if handler not in HAVE_STAND_INS:
            raise NotLazy(f"{where} is of type {kind.__module__}.{kind.__qualname__}")
        handler(walk, value, where)
        _attributes(walk, value, where)
    except NotLazy:
        if not walk.is_only_named():
            raise
        walk.unknown(value, where)
