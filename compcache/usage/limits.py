"""The size limit of a cache directory, and parsing of sizes and durations."""

from __future__ import annotations

import math
import re

from compcache.configuration import SettingError, project_setting
from compcache.interrupts import reraise_interrupt
from compcache.settings import from_environment, setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    _T = TypeVar("_T")

__all__ = ["DEFAULT_MAX_SIZE", "effective_limit", "limit_setting", "parse_duration", "parse_size", "read_seconds", "read_size"]

#: The default fits a home directory, and is enough for half a million modules of ten kilobytes, more than most projects ever compile.
#: ccache has the same default.
DEFAULT_MAX_SIZE = 5 << 30
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400, "y": 365 * 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h|d|w|y)", re.IGNORECASE)
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Convert a size like ``500M``, ``1.5 GiB`` or ``4096`` to bytes; units are powers of 1024. Raise `ValueError` for any other text."""
    match = _SIZE.fullmatch(text)
    size = math.inf if match is None else float(match[1]) * _UNITS[match[2].lower()]
    if math.isinf(size):
        raise ValueError(f"{text!r} is not a valid size: give a number of bytes, or a number with a unit, like 500M or 2GiB")
    return int(size)


def parse_duration(text: str) -> float:
    """Convert a duration like ``36h``, ``30d`` or ``1.5 h`` to seconds. Raise `ValueError` for other text, such as one without a unit."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        problem = "has no unit" if text.strip().isdecimal() else "is not a valid duration"
        raise ValueError(f"{text!r} {problem}: give a number with the unit s, min, h, d, w or y, like 36h or 30d")
    return float(match[1]) * _SECONDS[match[2].lower()]


def read_seconds(text: str) -> float:
    """Return the number of seconds in a setting, like ``60`` or ``0.5``.

    Raise `ValueError` if the text is not a number, or the number is negative or infinite.
    """
    try:
        seconds = float(text)
    except ValueError as error:
        reraise_interrupt(error)
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"{text!r} is not a valid number of seconds: give a number of 0 or more, like 60 or 0.5")
    return seconds


def read_size(size: object, argument: str = "max_size") -> int:
    """Convert a size argument to bytes. The argument is a number of bytes, or text for `parse_size`.

    Raises:
        TypeError: the argument is neither an int nor text.
        ValueError: the argument is not a valid size, or is negative. The message names the `argument`.
    """
    if isinstance(size, str):
        try:
            return parse_size(size)
        except ValueError as error:
            reraise_interrupt(error)
            raise ValueError(f"{argument}: {error}") from None
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"{argument} must be a number of bytes or text like '5GB', not {type(size).__name__}: {size!r}")
    if size < 0:
        raise ValueError(f"{argument} must be 0 or more, not {size}")
    return size


def limit_setting(variable: str, read: Callable[[str], _T], root: str) -> _T | None:
    """Return a limit in the settings, parsed with `read`; None if the limit is not set.

    The limit comes from the environment, a configuration file, or the ``pyproject.toml`` of the project that contains the directory `root`.

    Raise `SettingError` if `read` raised a `ValueError`; the message names the variable, or the file and the key. Raise `StorageError`
    if the project's file cannot be read at the moment.
    """
    if setting(variable):
        return from_environment(variable, read)

    text, path = project_setting(variable, root)
    try:
        return read(text) if text else None
    except ValueError as error:
        reraise_interrupt(error)
        raise SettingError(f"{path}: [tool.compcache] {variable.removeprefix('COMPCACHE_').lower()}: {error}", variable) from error


def effective_limit(max_size: int | None, root: str) -> int | None:
    """Return the size limit of a cache directory in bytes: `max_size`, else the setting, else the default; None for no limit (0).

    Raise `SettingError` if the setting is not a valid size, or `StorageError` if the project's file cannot be read at the moment.
    """
    if max_size is None:
        max_size = limit_setting("COMPCACHE_MAX_SIZE", parse_size, root)
        if max_size is None:
            return DEFAULT_MAX_SIZE
    return max_size or None
