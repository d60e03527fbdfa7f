"""Defines the errors for functions without an identity, and the decorator for functions that examine a program's objects."""

from __future__ import annotations

import functools
from errno import ELOOP

from compcache.interrupts import reraise_interrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec, Self, TypeVar

    _P = ParamSpec("_P")
    _R = TypeVar("_R")

__all__ = ["NotLazy", "TooLarge", "Unidentifiable", "Unrepeatable", "examines_program", "imports_ignore"]

_EXAMINING_PACKAGE = "compcache.numba."


class Unidentifiable(Exception):  # noqa: N818 - a result, not a failure
    """Raised if a value that a function reads has no identity by content. The message names the value and the function."""

    def without_traceback(self) -> Self:
        """Return an equal error without a cause and a traceback."""
        return type(self)(*self.args)


class TooLarge(Unidentifiable):
    """Raised if more values can be reached than may be compared by content."""


class Unrepeatable(Unidentifiable):
    """Raised if code of the program without an identity generates code.

    The generator may read files, the environment, or addresses of this process. Then no cache can decide whether its code is still valid,
    so the code is stored nowhere.
    """


class NotLazy(Unidentifiable):
    """Raised if a function cannot be used without Numba. The message says why."""


def examines_program(error_class: type[Unidentifiable]) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Return a decorator for functions that examine objects of the program. Errors of the program's own code become `error_class`.

    Exceptions from signal handlers, and exceptions that do not derive from `Exception`, are raised unchanged.
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
                raise error_class(f"{_examined_value(error)} raised {type(error).__name__} when it was examined") from error

        return guarded

    return decorate


def _examined_value(error: Exception) -> str:
    """Return the description of the value that was examined at an error. An examining function has it in its variable `where`."""
    description, step = "a value that the function reads", error.__traceback__
    while step is not None:
        if str(step.tb_frame.f_globals.get("__name__")).startswith(_EXAMINING_PACKAGE):
            description = step.tb_frame.f_locals.get("where") or description
        step = step.tb_next
    return description


def imports_ignore(error: OSError) -> bool:
    """Return whether imports ignore a file or directory that cannot be read for this reason. With other errors it may be readable later."""
    return isinstance(error, (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)) or error.errno == ELOOP
