"""Keeps what was found out about objects of the process for the time of one look-up, in which the program does not run."""

from __future__ import annotations

import threading
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, TypeVar

    _R = TypeVar("_R")

__all__ = ["one_look_up", "remembered"]


class _Examined(threading.local):
    """The results of functions for their arguments, by the ids of both; None outside of look-ups."""

    results: dict[tuple[int, ...], Any] | None = None


_examined = _Examined()


@contextmanager
def one_look_up() -> Iterator[None]:
    """Keep what `remembered` returns until this block ends, or the outermost such block."""
    outer = _examined.results
    _examined.results = {} if outer is None else outer
    try:
        yield
    finally:
        _examined.results = outer


def remembered(function: Callable[..., _R], *objects: Any) -> _R:
    """Return the result of a function for these objects. In a look-up the function is called once."""
    known = _examined.results
    if known is None:
        return function(*objects)
    key = tuple(map(id, (function, *objects)))
    if key not in known:
        known[key] = function(*objects), objects  # kept alive, so that no id is reused
    result: _R = known[key][0]
    return result
