"""Types of command-line options: sizes, durations and times."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from compcache.usage.limits import parse_duration, parse_size

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    _Type = click.ParamType[Any]
else:
    _Type = click.ParamType  # older versions of click have no type arguments

__all__ = ["DURATION", "MOMENT", "SIZE"]


class _ParsedType(_Type):
    """A type of options whose text a function converts. The messages of its `ValueError`s are shown."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the converted text, or a value of another type unchanged. Raise `click.BadParameter` for an invalid text."""
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _parse_moment(text: str) -> float:
    """Return a time, given as an age or an ISO date, in seconds since the epoch. Raise `ValueError` if it is not valid."""
    with suppress(ValueError):
        return time.time() - parse_duration(text)
    from datetime import datetime

    try:
        return datetime.fromisoformat(text).timestamp()  # local time unless it has a zone
    except ValueError:
        raise ValueError(f"{text!r} is not a valid time: give an age (7d, 12h) or a date (2026-01-31)") from None


SIZE = _ParsedType("size", parse_size)
DURATION = _ParsedType("duration", parse_duration)
MOMENT = _ParsedType("moment", _parse_moment)
