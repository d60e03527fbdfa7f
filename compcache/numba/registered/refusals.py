"""The errors that say a function has no identity, and the decorator for functions that examine a program's objects."""

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


class Unidentifiable(Exception):  # noqa: N818 - an answer, not a failure
    """Raised if a value that a function reads has no identity by content. The message tells which and where."""

    def again(self) -> Self:
        """Return the same error without its cause."""
        return type(self)(*self.args)


class TooLarge(Unidentifiable):
    """Raised if more can be reached than is compared by content."""


class Unrepeatable(Unidentifiable):
    """Raised if code of the program without identity generates code: it may read files, the environment, or addresses of this process. No
    other cache can tell whether the code is still valid, so it is stored nowhere.
    """


class NotLazy(Unidentifiable):
    """Raised if a function cannot be used without Numba. The message tells why."""


def looks_at_programs(refusal: type[Unidentifiable]) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorate a function that examines objects of the program, so that errors of their own code become refusals.

    Exceptions from signal handlers, and those that do not derive from `Exception`, are passed on to the program.
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
                raise refusal(f"{_looked_at(error)} raised {type(error).__name__} when it was examined") from error

        return guarded

    return decorate


def _looked_at(error: Exception) -> str:
    """Return what was being examined when the program's code raised an error."""
    found, step = "something that it reads", error.__traceback__
    while step is not None:
        if str(step.tb_frame.f_globals.get("__name__")).startswith(_WALKS):
            found = step.tb_frame.f_locals.get("where") or found
        step = step.tb_next
    return found
