"""The exception for code without an identity."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from compcache.files import reraise_interrupt

if TYPE_CHECKING:
    from collections.abc import Callable

    _P = ParamSpec("_P")
    _R = TypeVar("_R")

__all__ = ["TooLarge", "Unidentifiable", "looks_at_programs"]


class Unidentifiable(Exception):  # noqa: N818 - it is an answer, not a failure
    """Raised when a value that a function reads has no identity by content; the message says which and where."""


class TooLarge(Unidentifiable):
    """Raised when more can be reached than is compared by content."""


def looks_at_programs(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorate a function that looks at objects of the program: whatever their own code raises then, they have no identity.

    What a signal handler raises, and what is no `Exception`, is the program's still.
    """

    @functools.wraps(function)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except Unidentifiable:
            raise
        except Exception as error:
            reraise_interrupt(error)
            raise Unidentifiable(f"{_looked_at(error)} raised {type(error).__name__} when it was looked at") from error

    return guarded


def _looked_at(error: Exception) -> str:
    """What the walk was looking at last when the program's code raised an error."""
    found, step = "something that it reads", error.__traceback__
    while step is not None:
        if step.tb_frame.f_globals.get("__name__", "").startswith(_FINGERPRINTS):
            found = step.tb_frame.f_locals.get("where") or found
        step = step.tb_next
    return found


_FINGERPRINTS = __name__.rpartition(".")[0]
