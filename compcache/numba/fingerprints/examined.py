"""Stores results of examining objects of the process for the duration of one look-up.

The program does not run during a look-up, so the results stay valid.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, TypeVar

    _R = TypeVar("_R")

__all__ = ["call_once", "remember_during_look_up"]


class _Examined(threading.local):
    """The results of functions, by the ids of the function and its arguments; None if no look-up is running."""

    results: dict[tuple[int, ...], Any] | None = None


_examined = _Examined()


@contextmanager
def remember_during_look_up() -> Iterator[None]:
    """Store the results of `call_once` until the outermost look-up ends."""
    outer = _examined.results
    _examined.results = {} if outer is None else outer
    try:
        yield
    finally:
        _examined.results = outer


def call_once(function: Callable[..., _R], *objects: Any) -> _R:
    """Call a function with these objects, and return its result. During a look-up, at most one call is made for the same objects."""
    results = _examined.results
    if results is None:
        return function(*objects)
    key = tuple(map(id, (function, *objects)))
    if key not in results:
        results[key] = function(*objects), objects  # kept alive, so that no id is reused
    result: _R = results[key][0]
    return result
