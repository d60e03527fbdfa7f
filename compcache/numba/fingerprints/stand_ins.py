"""What stands for objects of Numba where it is not imported: it feeds itself what Numba's own object would be known by.

Where Numba is imported later, its own objects take the places of these. `note_real` remembers for which, so that keys of functions
stay what they were.
"""

from __future__ import annotations

import sys

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
#: What Numba has made in the place of lazy objects, and these, by the id of the former.
_made: dict[int, tuple[Any, Any]] = {}
#: Classes that are treated as `numba.prange`.
_PRANGE: set[Any] = set()
#: Numba's contexts: parts of functions in them run otherwise, with the globals of that moment.
_CONTEXTS = ("objmode", "parallel_chunksize")
_OBJECT_MODE = "objmode"


def note_real(real: Any, lazy: Any) -> None:
    """Let an object that Numba has made have the content of the lazy one that it replaces in globals."""
    if hasattr(type(lazy), "_compcache_content"):
        _made[id(real)] = real, lazy


def stand_for_prange(cls: Any) -> None:
    """Treat a class as `numba.prange`."""
    _PRANGE.add(cls)


def jitted(value: Any) -> Any:
    """The jitted function that a value is, or that it was made for by Numba; None for other values."""
    lazy = value if hasattr(type(value), "_compcache_is_declaration") else _made.get(id(value), (None, None))[1]
    return lazy if hasattr(type(lazy), "_compcache_is_declaration") else None


def is_declared_as(value: Any, function: Any) -> bool:
    """Whether a function that was compiled when it was declared reads itself: the name was not set then."""
    is_declaration = getattr(type(value), "_compcache_is_declaration", None)
    return is_declaration is not None and bool(is_declaration(value, function))


def is_generators_module(value: Any) -> bool:
    """Whether a module is one of a library that generates code: what it holds follows from the version, and is looked at by nobody."""
    return issubclass(type(value), _Module) and value.__name__.partition(".")[0] in CODE_GENERATORS


def is_object_mode(value: Any) -> bool:
    """Whether this is `numba.objmode`, or stands for it."""
    return _context_of(value) == _OBJECT_MODE


def _context_of(value: Any) -> str | None:
    kind = type(value)
    if hasattr(kind, "_compcache_context"):
        name: str | None = kind._compcache_context(value)
        return name
    if kind.__module__ != "numba.core.withcontexts":
        return None
    return next((name for name in _CONTEXTS if getattr(sys.modules["numba"], name, None) is value), None)


def handler_without_numba(value: Any) -> Callable[[Walk, Any, str], None] | None:
    """The handler of what stands for an object of Numba, or is one; None for other values."""
    kind = type(value)
    if hasattr(kind, "_compcache_content"):
        return _of_stand_in
    if id(value) in _made:
        return _of_made
    if issubclass(kind, type):
        is_prange = value in _PRANGE or (value.__qualname__ == "prange" and value.__module__ == "numba.misc.special")
        return _of_prange if is_prange else None
    return _of_generators if kind.__module__.partition(".")[0] in CODE_GENERATORS else None


def _of_stand_in(walk: Walk, value: Any, where: str) -> None:
    try:
        type(value)._compcache_content(value, walk)
    except NotLazy:
        if not walk.is_only_named():
            raise
        walk.unknown(value, where)


def _of_made(walk: Walk, value: Any, where: str) -> None:
    _of_stand_in(walk, _made[id(value)][1], where)


def _of_prange(walk: Walk, _value: Any, _where: str) -> None:
    walk.token("prange")


def _of_generators(walk: Walk, value: Any, where: str) -> None:
    """Feed an object of Numba itself, which another process may know without Numba."""
    context, kind = _context_of(value), type(value)
    text = text_of(value) if context is None else None
    if context is not None:
        walk.token("context", "numba", context)
    elif text is not None:
        walk.token("numba type", text)
    elif kind.__module__.startswith("llvmlite.ir"):
        walk.token("llvm", kind.__qualname__, value)
    else:
        _of_numba(walk, value, where)


def _of_numba(walk: Walk, value: Any, where: str) -> None:
    from compcache.numba.fingerprints.numba_plain import feeder_of

    kind = type(value)
    feed = feeder_of(value) if kind.__module__.startswith("numba.") else None
    try:
        if feed is None:
            raise NotLazy(f"{where} is of type {kind.__module__}.{kind.__qualname__}")
        feed(walk, value)
    except NotLazy:
        if not walk.is_only_named():
            raise
        walk.unknown(value, where)
