"""Runs implementations with the values that they read when the code that contains their results was loaded."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager
from functools import partial, wraps
from operator import call
from types import FunctionType
from typing import TYPE_CHECKING, Any

from compcache.interrupts import suppress
from compcache.numba.fingerprints.former import changed_attributes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["former_attributes", "former_implementation"]


@contextmanager
def former_attributes(function: Any, copies: dict[Any, Any]) -> Iterator[None]:
    """Give attributes of the program's classes and objects that a function reads their former values while the block runs.

    `copies` are those of `former_function`. Do nothing if there are other threads, because they would read the former values, too.
    """
    rows = changed_attributes(function, copies) if threading.active_count() == 1 else []
    try:
        _set_all([(owner, name, former) for owner, name, former, _ in rows])
        yield
    finally:
        _set_all([(owner, name, present) for owner, name, _, present in rows])


def _set_all(rows: list[tuple[Any, str, Any]]) -> None:
    """Set attributes of classes and objects, up to the first that cannot be set.

    No signal handler runs in between, because one call of a function in C sets all.
    """
    with suppress(Exception):
        deque(map(call, [_setter_of(owner, name) for owner, name, _ in rows], [value for _, _, value in rows]), maxlen=0)


def _setter_of(owner: Any, name: str) -> Callable[[Any], None]:
    """Return a function that sets an attribute of a class or an object without its `__setattr__`."""
    if issubclass(type(owner), type):
        return partial(type.__setattr__, owner, name)
    attributes = getattr(owner, "__dict__", {})
    return partial(attributes.__setitem__, name) if name in attributes else partial(object.__setattr__, owner, name)


def former_implementation(function: Any, copies: dict[Any, Any], *, is_compiled: bool) -> Callable[..., Any]:
    """Return a function that calls the copy of an implementation with the former values of attributes.

    `copies` are the copies of the implementation and of functions that it refers to, by their functions. `is_compiled` is whether Numba has
    compiled what the implementation returned. Otherwise, the functions that the copy returns read present globals, because Numba inlines
    them, or calls them, for each caller.
    """
    originals = {copy: original for original, copy in copies.items()}
    namespaces = {id(copy.__globals__): original.__globals__ for copy, original in originals.items()}

    def with_present_globals(value: Any) -> Any:
        """Return a function of a copy, alone or in a tuple, as one that reads the present globals. Return any other value unchanged."""
        if type(value) is tuple:
            return tuple(map(with_present_globals, value))
        if type(value) is not FunctionType or value in originals or id(value.__globals__) not in namespaces:
            return originals.get(value, value) if type(value) is FunctionType else value
        return FunctionType(value.__code__, namespaces[id(value.__globals__)], value.__name__, value.__defaults__, value.__closure__)

    @wraps(copies[function])
    def run(*args: Any, **kwargs: Any) -> Any:
        with former_attributes(function, copies):
            returned = copies[function](*args, **kwargs)
        return returned if is_compiled else with_present_globals(returned)

    return run
