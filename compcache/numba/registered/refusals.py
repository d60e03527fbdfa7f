"""The answer that a function has no identity, and the one guard around what looks at a program's objects."""

from __future__ import annotations

import functools

from compcache.files import reraise_interrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec, Self, TypeVar

    _P = ParamSpec("_P")
    _R = TypeVar("_R")

__all__ = ["NotLazy", "TooLarge", "Unidentifiable", "Unrepeatable", "looks_at_programs"]

_WALKS = "compcache.numba."


class Unidentifiable(Exception):  # noqa: N818 - it is an answer, not a failure
    """Raised when a value that a function reads has no identity by content; the message says which and where."""

    def again(self) -> Self:
        """The same answer, without what it was raised for."""
        return type(self)(*self.args)


class TooLarge(Unidentifiable):
    """Raised when more can be reached than is compared by content."""


class Unrepeatable(Unidentifiable):
    """Raised when code is made by code of the program that has no identity: that may read files, the environment, addresses of this
    process. No other cache can tell whether it still holds, so that it is left to none.
    """


class NotLazy(Unidentifiable):
    """Raised when a function cannot be used without Numba; the message says why."""


def looks_at_programs(refusal: type[Unidentifiable]) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorate a function that looks at objects of the program: whatever their own code raises then is a refusal.

    What a signal handler raises, and what is no `Exception`, is the program's still.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                return function(*args, **kwargs)
            except Unidentifiable:
                raise
            except Exception as error:
                reraise_interrupt(error)
                raise refusal(f"{_looked_at(error)} raised {type(error).__name__} when it was looked at") from error

        return guarded

    return decorate


def _looked_at(error: Exception) -> str:
    """What was being looked at when the program's code raised an error."""
    found, step = "something that it reads", error.__traceback__
    while step is not None:
        if str(step.tb_frame.f_globals.get("__name__")).startswith(_WALKS):
            found = step.tb_frame.f_locals.get("where") or found
        step = step.tb_next
    return found
