"""Settings of the environment: one function reads them all, and says which one is not valid."""

from __future__ import annotations

import os

from compcache.errors import CompcacheError
from compcache.files import reraise_interrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    _T = TypeVar("_T")

__all__ = ["SettingError", "from_environment", "read_switch"]


class SettingError(CompcacheError, ValueError):
    """An environment variable has a value that is not valid; `variable` is its name."""

    def __init__(self, message: str, variable: str = "") -> None:
        super().__init__(message)
        self.variable = variable


def from_environment(variable: str, read: Callable[[str], _T]) -> _T | None:
    """What `read` makes of the value of an environment variable; None where it is not set or empty.

    Raises:
        SettingError: `read` raised `ValueError`, or `OSError` about a file that the value names. The message names the variable.
    """
    text = os.environ.get(variable)
    if not text:
        return None
    try:
        return read(text)
    except (ValueError, OSError) as error:
        reraise_interrupt(error)
        message = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
        raise SettingError(f"{variable}: {message}", variable) from error


_ON, _OFF = ("1", "on", "yes", "true"), ("0", "off", "no", "false")


def read_switch(text: str) -> bool:
    """Whether the text of a switch is on. Raises `ValueError` where it is neither on nor off."""
    word = text.strip().lower()
    if word not in _ON + _OFF:
        raise ValueError(f"{text!r} is neither on nor off: use 1 or 0")
    return word in _ON
