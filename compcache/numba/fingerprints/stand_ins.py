"""Feeds the stand-ins for Numba objects to walks without Numba.

A stand-in feeds the same tokens as Numba's own object. If Numba is imported later, its objects replace the stand-ins. `record_real`
records these pairs, so that keys of functions do not change.
"""

from __future__ import annotations

import sys
from _weakref import ref  # importing `weakref` is slow
from functools import partial

from compcache.interrupts import suppress
from compcache.numba.fingerprints import REPLACED, RUN
from compcache.numba.registered.library import is_generator_module, is_of_generators
from compcache.numba.registered.marks import is_marked, is_module
from compcache.numba.registered.refusals import NotLazy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from compcache.numba.fingerprints.walk import Walk

__all__ = [
    "handler_without_numba", "is_declared_as", "is_module_of_generators", "lazy_jitted_of", "lazy_of", "reads_object_mode",
    "record_real", "register_prange",
]  # fmt: skip

#: References to Numba objects and to the lazy objects that they have replaced, by the id of the Numba object. A Numba object that is gone
#: has no row.
_replaced: dict[int, tuple[Callable[[], Any], Callable[[], Any]]] = {}
#: The classes that replace `numba.prange`.
_PRANGE: set[Any] = set()
#: Numba's context managers. Their blocks are compiled in another way.
_CONTEXTS = ("objmode", "parallel_chunksize")
_OBJECT_MODE = "objmode"


def record_real(real: Any, lazy: Any) -> Any:
    """Record that a Numba object replaces a lazy object with content in globals, and has the same content. Return the Numba object.

    The Numba object refers to the lazy object, so that both are freed together. A ufunc of NumPy cannot refer to it, and is never freed.
    """
    if is_marked(type(lazy), "_compcache_content"):
        _replaced[id(real)] = lambda: real, lambda: lazy
        with suppress(TypeError):
            vars(real)[REPLACED] = lazy
            _replaced[id(real)] = ref(real, partial(_remove_row, id(real))), ref(lazy)
    return real


def _remove_row(number: int, _: Any) -> None:
    """Remove the row of a Numba object that was freed."""
    _replaced.pop(number, None)


def lazy_of(real: Any) -> Any:
    """Return the lazy object that a Numba object has replaced, or None."""
    row = _replaced.get(id(real))
    return row[1]() if row is not None and row[0]() is real else None


def register_prange(cls: Any) -> None:
    """Treat a class as `numba.prange`."""
    _PRANGE.add(cls)


def lazy_jitted_of(value: Any) -> Any:
    """Return the lazy jitted function that a value is, or from which Numba has created the value; None for any other value."""
    lazy = value if is_marked(type(value), "_compcache_is_declaration") else lazy_of(value)
    return lazy if is_marked(type(lazy), "_compcache_is_declaration") else None


def is_declared_as(value: Any, function: Any) -> bool:
    """Return whether a value is the declaration of a function with signatures, which is compiled before its own name is assigned."""
    return is_marked(type(value), "_compcache_is_declaration") and bool(type(value)._compcache_is_declaration(value, function))


def is_module_of_generators(value: Any) -> bool:
    """Return whether a value is a module of a library that generates code. The content of the module follows from the version."""
    return is_module(value) and is_generator_module(value.__name__)


def reads_object_mode(chains: Iterable[tuple[tuple[str, ...], Any, int]]) -> bool:
    """Return whether one of these attribute chains leads to `numba.objmode`.

    A chain has its names, the last value to which the names lead through modules, and the number of names that lead to this value.
    """
    return any(
        _context_name(value) == _OBJECT_MODE or (_OBJECT_MODE in names[followed:] and is_module_of_generators(value))
        for names, value, followed in chains
    )


def _context_name(value: Any) -> str | None:
    """Return the name of a context manager of Numba or its stand-in; None for any other value."""
    kind = type(value)
    if is_marked(kind, "_compcache_context"):
        name: str | None = kind._compcache_context(value)
        return name
    if kind.__module__ != "numba.core.withcontexts":
        return None
    return next((name for name in _CONTEXTS if getattr(sys.modules["numba"], name, None) is value), None)


def handler_without_numba(value: Any) -> Callable[[Walk, Any, str], None] | None:
    """Return the handler for a Numba object or its stand-in; None for any other value."""
    kind = type(value)
    if is_marked(kind, "_compcache_content"):
        return _feed_stand_in
    if lazy_of(value) is not None:
        return _feed_replaced
    if issubclass(kind, type):
        is_prange = value in _PRANGE or (value.__qualname__ == "prange" and value.__module__ == "numba.misc.special")
        return _feed_prange if is_prange else None
    return _feed_generators_object if is_of_generators(kind) else None


def _feed_stand_in(walk: Walk, value: Any, where: str) -> None:
    _feed_numba_object(walk, value, where, lambda: type(value)._compcache_content(value, walk))


def _feed_numba_object(walk: Walk, value: Any, where: str, feed_content: Callable[[], None]) -> None:
    """Feed the content of a Numba object, and attributes that the program has set on it if running code can read them.

    If the content needs Numba, raise `NotLazy`, or feed only the object's type if the compiler does not need the content.
    """
    try:
        feed_content()
        if walk.mode == RUN:
            from compcache.numba.fingerprints.state import may_have_attributes

            if may_have_attributes(value):
                walk.reach().refer_to_owner(walk, value, where)
    except NotLazy:
        if not walk.needs_no_content():
            raise
        walk.feed_unknown(value, where)


def _feed_replaced(walk: Walk, value: Any, where: str) -> None:
    _feed_stand_in(walk, lazy_of(value), where)


def _feed_prange(walk: Walk, value: Any, where: str) -> None:
    """Feed `prange`, with a reference to it if running code can read attributes that the program has set on it."""
    walk.feed_token("prange")
    if walk.mode == RUN:
        from compcache.numba.fingerprints.state import is_changed_by_program

        if is_changed_by_program(value):
            walk.reach().refer_to_owner(walk, value, where)


def _feed_generators_object(walk: Walk, value: Any, where: str) -> None:
    """Feed a Numba object itself. Another process feeds the same tokens without Numba."""
    from compcache.numba.registered.type_texts import text_of  # most keys do not need it

    context, kind = _context_name(value), type(value)
    text = text_of(value) if context is None else None
    if context is not None:
        walk.feed_token("context", "numba", context)
    elif text is not None:
        walk.feed_token("numba type", text)
    elif kind.__module__.startswith("llvmlite.ir"):
        walk.feed_token("llvm", kind.__qualname__, value)
    else:
        _feed_numba_object(walk, value, where, lambda: _feed_by_numbas_handler(walk, value, where))


def _feed_by_numbas_handler(walk: Walk, value: Any, where: str) -> None:
    """Feed a Numba object by the handler that a walk with Numba uses. Raise `NotLazy` if objects of this class have no stand-in."""
    from compcache.numba.fingerprints.numba_values import HANDLERS_OF_STAND_INS, handlers

    kind = type(value)
    rows = handlers() if kind.__module__.startswith("numba.") else ()
    handler = next((handler for classes, handler in rows if issubclass(kind, classes)), None)
    if handler not in HANDLERS_OF_STAND_INS:
        raise NotLazy(f"{where} has the type {kind.__module__}.{kind.__qualname__}, for which compcache needs Numba")
    handler(walk, value, where)
